// A browser without a window, whose user the authorization server knows by `login_hint`: it follows redirects and keeps cookies.

export const REDIRECT = 'http://127.0.0.1:1/callback';
const HOPS_MAX = 12;

/** The metadata by which a client of these tests registers itself. */
export const CLIENT_METADATA = {
  client_name: 'taskgate peer',
  redirect_uris: [REDIRECT],
  grant_types: ['authorization_code', 'refresh_token'],
  response_types: ['code'],
  token_endpoint_auth_method: 'none',
  application_type: 'native',
};

export class Browser {
  /** `cookie` is that of a user who is logged in already. */
  constructor(user, cookie) {
    this.user = user;
    this.cookie = cookie;
    this.logins = 0;
  }

  /** Follows an authorization to its end; `returned` then holds the parameters of the callback. */
  async open(address) {
    this.logins += 1;
    const cookies = new Map(this.cookie ? [this.cookie.split('=')] : []);
    let at = new URL(address);
    at.searchParams.set('login_hint', this.user);
    for (let hop = 0; hop < HOPS_MAX; hop += 1) {
      const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
      const response = await fetch(at, { redirect: 'manual', headers: cookie ? { cookie } : {} });
      for (const line of response.headers.getSetCookie()) {
        const [name, value] = line.split(';')[0].split('=');
        if (value) cookies.set(name, value);
        else cookies.delete(name);
      }
      const location = response.headers.get('location');
      if (!location) throw new Error(`HTTP ${response.status} at ${at}: ${await response.text()}`);
      at = new URL(location, at);
      // glewlwyd's page of logins: it is a program, and this is its last step.
      if (at.pathname === '/login.html') at = new URL(`${at.searchParams.get('callback_url')}&g_continue=`);
      if (at.href.startsWith(REDIRECT)) {
        this.returned = at.searchParams;
        return;
      }
    }
    throw new Error(`the authorization has more than ${HOPS_MAX} redirects`);
  }
}
