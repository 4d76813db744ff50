//! Follows moved files: a successor reads the current paths, not the paths of its start.

use std::path::PathBuf;

use super::{Config, DatabaseSettings, StoreSettings};
use crate::store::DatabaseUrl;

impl Config {
    /// Takes over another configuration's paths of the `listen.tls` certificates and of the `store` and `replica` files. A
    /// setting without a file in either stays as it is.
    pub fn take_moved_files(&mut self, newer: &Self) {
        follow(&mut self.listen.tls, newer.listen.tls.as_ref());
        if let (StoreSettings::Postgres(own), StoreSettings::Postgres(newer)) = (&mut self.store, &newer.store) {
            own.take_moved_files(newer);
        }
    }
}

impl DatabaseSettings {
    fn take_moved_files(&mut self, newer: &Self) {
        if let (DatabaseUrl::File(own), DatabaseUrl::File(newer)) = (&mut self.access.url, &newer.access.url) {
            PathBuf::clone_from(own, newer);
        }
        follow(&mut self.access.password_file, newer.access.password_file.as_ref());
        follow(&mut self.access.ca, newer.access.ca.as_ref());
        follow(&mut self.replica.tls, newer.replica.tls.as_ref());
    }
}

fn follow<T: Clone>(own: &mut Option<T>, newer: Option<&T>) {
    if let (Some(own), Some(newer)) = (own, newer) {
        own.clone_from(newer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &str, schema: &str) -> Config {
        let text = format!(
            "[listen]\ntls = {{ certificate = \"{folder}/l.pem\", key = \"{folder}/l.key\" }}\n\
             [store]\nkind = \"postgres\"\ndurability = \"single\"\nschema = \"{schema}\"\nurl_file = \"{folder}/db.url\"\n\
             password_file = \"{folder}/db.password\"\nca = \"{folder}/db.pem\"\n\
             [replica]\naddress = \"10.0.0.5:9443\"\ncertificate = \"{folder}/r.pem\"\nkey = \"{folder}/r.key\"\n\
             ca = \"{folder}/ca.pem\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9000/mcp\"\n"
        );
        super::super::parse("test", &text, &|_| None).unwrap().config
    }

    #[test]
    fn files_are_followed_and_nothing_else() {
        let mut followed = config("/old", "s");
        followed.take_moved_files(&config("/new", "t"));
        assert_eq!(format!("{followed:?}"), format!("{:?}", config("/new", "s")));
    }

    /// Plaintext or TLS does not depend on the location of a file.
    #[test]
    fn a_file_that_was_not_named_at_the_start_changes_nothing() {
        let in_memory = "[upstreams.up]\nurl = \"http://127.0.0.1:9000/mcp\"\n";
        let in_memory = || super::super::parse("test", in_memory, &|_| None).unwrap().config;
        for (mut started, newer) in [(in_memory(), config("/new", "s")), (config("/old", "s"), in_memory())] {
            let before = format!("{started:?}");
            started.take_moved_files(&newer);
            assert_eq!(format!("{started:?}"), before);
        }
    }
}
