// Command load makes calls of an MCP server, as fast as it answers or at a rate, and checks every answer.
//
//	load [flags] URL
//
// URL is the endpoint, http or https, of any server that speaks MCP's Streamable HTTP transport, or of a proxy before
// one. Of a self-signed https server, name the certificate in SSL_CERT_FILE. The era says which protocol to speak:
// stateless is MCP 2026-07-28, legacy 2025-11-25 with a session for each connection.
//
// # Closed and open loop
//
// Each of -conns connections has one call in flight. Without -rate it makes the next call when the last was answered (a
// closed loop): that shows what the server can do, and what a call costs it. With -rate calls fall due at times fixed
// beforehand, evenly over the whole run, and the next connection that is free makes them (an open loop): that shows the
// latency that callers see who do not wait for each other. Latency then counts from the time a call was due, however
// late it was sent, so that a server that stops for a second is seen by every call of that second.
//
// Calls that are due while every connection is busy wait. There is room for what falls due in one -timeout (at most
// 1,048,576); a call that finds none is dropped. Those, and those that still wait when the time is up, are counted as
// never sent: when there are any, -conns are too few or the server cannot keep the rate.
//
// # What is checked
//
// By default the server is bench/null, and every byte of an answer is known: it holds the connection's own name and the
// call's number, so that an answer that reached the wrong client is noticed. A proxy may write the message anew; then
// its id and its text must be right to the byte. Of any other server (-tool with -args, -uri, -op list) an answer is
// right when its id is the call's, when it has a result that is no error, and when it holds -expect and the JSON value
// in -expect-file, such as the array of a long list, byte for byte.
//
// An answer that is not the call's is wrong. A call that was refused (a JSON-RPC error, an HTTP status other than 2xx),
// cut short or not answered within -timeout has failed. Both are counted, the first of them is said in full, and
// neither ends the run. Nothing is sent twice: when a server closes an idle connection just as a call is sent, that call
// has failed. A connection that broke is opened again after 10 ms, then 20 ms, up to a second. Only when a connection
// cannot be opened at the start is there no run.
//
// # Operations
//
//	call     tools/call
//	list     tools/list, its first page
//	read     resources/read
//	prompt   prompts/get
//	stream   open a subscription (stateless: until it is acknowledged) or a GET stream (legacy: until its head), and
//	         close the connection with it; a server that takes one GET stream of a session at a time may refuse the
//	         next while it has not noticed the end of the last
//	session  legacy only: initialize, notifications/initialized, a tools/call and DELETE, as one call
//
// With -hold the last two open one stream or session for each of -conns, print {"holding":N} on standard output, and
// keep them until SIGTERM or SIGINT, or for -duration. What could not be opened, or ended by itself, has failed. A held
// session keeps no connection. Sessions are ended with DELETE before the program exits.
//
// # What is printed
//
// A summary, or with -json one line of JSON: package record's Load, with the whole latency distribution as an
// HdrHistogram (1 us to 60 s, three digits). On a terminal a line on standard error shows how it goes. "own cost" is
// this program's CPU time divided by calls: while it is far below the server's, the server is what is measured.
//
// Exit status: 0 when no call failed and none was wrong; 1 otherwise; 2 for wrong flags.
package main
