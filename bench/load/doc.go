// Command load makes calls of an MCP server, as fast as it answers or at a rate, and checks every answer.
package main
