//! Shows a shared store's replicas and removes a dead one (`taskgate replicas`), over the admin listener.

use std::time::Duration;

use http::Method;
use serde::Deserialize;

use super::admin_client::{AdminAnswer, AdminClient, AdminOutput, AdminRequestError, read, refused};
use super::printable::{aligned_lines, in_short, printable, printable_json};
use crate::face::operators::OperatorReplica;

/// The request to the gateway.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub(super) enum ReplicasCommand {
    /// Lists the replicas that share the store, as the asked one sees them; for a day also those that ended.
    List {
        /// Print a JSON list.
        #[arg(long)]
        json: bool,
    },
    /// Removes the row of a dead replica, which is otherwise kept for a day.
    ///
    /// The replica must have been declared dead, and hold no task: others take its tasks over within seconds. A replica that
    /// was only paused finds no row when it continues, concludes that the database lost acknowledged writes, and exits with
    /// 74.
    Forget {
        /// Its `replica.name`.
        name: String,
    },
}

pub(super) async fn run(admin: &AdminClient, order: &ReplicasCommand) -> Result<AdminOutput, AdminRequestError> {
    #[derive(Deserialize)]
    struct ReplicaAnswer<'a> {
        #[serde(borrow)]
        replicas: &'a serde_json::value::RawValue,
    }
    #[derive(Deserialize)]
    struct ForgettingAnswer {
        incarnations: usize,
    }
    match order {
        ReplicasCommand::List { json } => {
            let AdminAnswer { status, body } = admin.ask(Method::GET, &["replicas"], &[]).await?;
            if !status.is_success() {
                return refused(&body);
            }
            let answer: ReplicaAnswer<'_> =
                serde_json::from_slice(&body).map_err(|_| AdminRequestError::Unintelligible)?;
            if *json {
                return Ok(AdminOutput::Done(printable_json(answer.replicas.get()) + "\n"));
            }
            let replicas: Vec<OperatorReplica> = read(answer.replicas.get().as_bytes())?;
            Ok(AdminOutput::Done(lines(&replicas)))
        }
        ReplicasCommand::Forget { name } => {
            let AdminAnswer { status, body } = admin.ask(Method::POST, &["replicas", name, "forget"], &[]).await?;
            if !status.is_success() {
                return refused(&body);
            }
            let ForgettingAnswer { incarnations } = read(&body)?;
            let of = if incarnations > 1 { format!(" ({incarnations} incarnations)") } else { String::new() };
            Ok(AdminOutput::Done(format!("forgotten: {}{of}\n", printable(name))))
        }
    }
}

fn lines(replicas: &[OperatorReplica]) -> String {
    let head =
        ["NAME", "INCARNATION", "STATE", "HEARTBEAT", "ADDRESS", "VERSION", "RECORDS"].map(str::to_owned).to_vec();
    let row = |one: &OperatorReplica| {
        let age = one.heartbeat_age_seconds.and_then(|age| Duration::try_from_secs_f64(age).ok());
        vec![
            printable(&one.name).into_owned(),
            one.incarnation.to_string(),
            printable(&one.state).into_owned(),
            age.map(|age| format!("{} ago", in_short(age))).unwrap_or_default(),
            printable(one.address.as_deref().unwrap_or_default()).into_owned(),
            printable(&one.version).into_owned(),
            one.record_format.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(replicas.iter().map(row)).collect();
    aligned_lines(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_stand_in_columns_and_no_name_is_obeyed() {
        let one = |name: &str, address: Option<&str>, age| OperatorReplica {
            name: name.to_owned(),
            incarnation: 12,
            state: "this one".into(),
            address: address.map(str::to_owned),
            version: "0.1.0".to_owned(),
            heartbeat_age_seconds: age,
            record_format: 9,
        };
        let text = lines(&[one("a", Some("10.0.0.5:9443"), Some(61.4)), one("\u{1b}[2J", None, None)]);
        assert_eq!(
            text,
            "NAME  INCARNATION  STATE     HEARTBEAT  ADDRESS        VERSION  RECORDS\n\
             a     12           this one  1m 1s ago  10.0.0.5:9443  0.1.0    9\n\
             \x20[2J  12           this one                            0.1.0    9\n"
        );
    }
}
