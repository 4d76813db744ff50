//! Asks a running gateway whether it is ready, for images without an HTTP client.

use std::process::ExitCode;

use http::Method;

use super::admin_client::{AdminAnswer, AdminClient, AdminRequestError, TOKEN_VARIABLE};
use super::{refuse, say};
use crate::cause::CauseChain;

/// The gateway to ask.
#[derive(Debug, clap::Args)]
pub(super) struct HealthArguments {
    /// The address of the gateway's admin listener, or of its [metrics] listener.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9090")]
    url: url::Url,
}

pub(super) async fn run(arguments: &HealthArguments) -> ExitCode {
    let token = std::env::var(TOKEN_VARIABLE).ok();
    let answer = match AdminClient::new(&arguments.url, token.as_deref()) {
        Ok(admin) => admin.ask(Method::GET, &["readyz"], &[]).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(answer) if answer.status.is_success() => ExitCode::SUCCESS,
        Ok(AdminAnswer { status, body }) => {
            let reasons = String::from_utf8_lossy(&body).trim().replace('\n', ", ");
            say(format_args!("not ready: {}", if reasons.is_empty() { status.to_string() } else { reasons }));
            ExitCode::FAILURE
        }
        Err(error @ (AdminRequestError::Address | AdminRequestError::Token)) => refuse(error),
        Err(error) => {
            say(CauseChain(&error));
            ExitCode::FAILURE
        }
    }
}
