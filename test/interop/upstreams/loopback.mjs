// --import this to make a server that names no host listen on 127.0.0.1 only.
import net from 'node:net';
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (p, ...a) {
  return (typeof p === 'number' || (typeof p === 'string' && /^\d+$/.test(p))) && typeof a[0] !== 'string'
    ? listen.call(this, Number(p), '127.0.0.1', ...a)
    : listen.call(this, p, ...a);
};
