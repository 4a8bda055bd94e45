// A fastmcp (npm) server over streamable HTTP:  node bridges/fastmcp-server.mjs 4072
import { FastMCP } from 'fastmcp';
const port = Number(process.argv[2] ?? 4072);
const s = new FastMCP({ name: 'fastmcp-upstream', version: '1.0.0' });
s.addTool({ name: 'echo', description: 'Echo', execute: async () => 'Echo: fastmcp' });
s.addTool({
  name: 'trigger-long-running-operation',
  description: 'progress',
  execute: async (_a, { reportProgress }) => {
    for (let i = 1; i <= 3; i++) {
      await new Promise((r) => setTimeout(r, 100));
      await reportProgress({ progress: i, total: 3 });
    }
    return 'Long running operation completed.';
  },
});
s.addResource({
  uri: 'test://fastmcp',
  name: 'r',
  mimeType: 'text/plain',
  load: async () => ({ text: 'fastmcp resource' }),
});
await s.start({ transportType: 'httpStream', httpStream: { port, host: '127.0.0.1' } });
console.error(`fastmcp on http://127.0.0.1:${port}/mcp`);
