//! A real authorization server, npm `oidc-provider`, as gateways and clients of these tests use it.

use support::peers::install::Peers;
use support::peers::process::Child;

/// The server; its process ends with it.
pub(crate) struct Issuer {
    pub(crate) url: String,
    /// The private key of its client `signer`, in PEM as a JSON text.
    pub(crate) signer: String,
    child: Child,
}

impl Issuer {
    /// `tokens` is `jwt` or `opaque`, and how many seconds they serve. It redeems assertions of `identity_provider`, which is another one.
    pub(crate) async fn start(
        peers: &Peers,
        name: &str,
        tokens: [&str; 2],
        identity_provider: Option<&str>,
    ) -> Result<Self, String> {
        let arguments = ["login_issuer.mjs"].into_iter().chain(tokens).chain(identity_provider);
        let mut child = Child::start(name, peers.command("node", arguments))?;
        let signer = child.line("signer ").await?;
        Ok(Self { url: child.line("as ").await?, signer, child })
    }

    /// Waits until it granted a token by this type of grant: the person and the resource.
    pub(crate) async fn granted(&mut self, grant: &str) -> String {
        let line = self.child.line(&format!("granted urn:ietf:params:oauth:grant-type:{grant} ")).await;
        line.expect("the authorization server grants a token")
    }
}
