// `fetch` with a client certificate, which Node's own does not take.

import { readFileSync } from 'node:fs';
import { Agent, request as httpsRequest } from 'node:https';
import { Readable } from 'node:stream';

/** Trusts the authority in the file `ca`, and shows the certificate in the file `certificate`, if there is one. */
export function fetchWithCertificate({ ca, certificate, key }) {
  const own = certificate ? { cert: readFileSync(certificate), key: readFileSync(key) } : {};
  const agent = new Agent({ ca: readFileSync(ca), servername: 'localhost', keepAlive: true, ...own });
  return (address, { method = 'GET', headers, body, signal } = {}) =>
    new Promise((resolve, reject) => {
      const sent = httpsRequest(address, { agent, method, headers: Object.fromEntries(new Headers(headers)), signal }, (incoming) => {
        const isEmpty = [204, 304].includes(incoming.statusCode);
        const fields = Object.entries(incoming.headers).map(([name, value]) => [name, String(value)]);
        resolve(new Response(isEmpty ? null : Readable.toWeb(incoming), { status: incoming.statusCode, headers: fields }));
      });
      sent.on('error', reject);
      sent.end(body ?? undefined);
    });
}
