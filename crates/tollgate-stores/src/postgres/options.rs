//! The address and settings of a PostgreSQL.

use super::Postgres;
use super::link::{Link, SOURCES, connections, time_outs};
use crate::connect::{Connect, ConnectOptions, check_time_out, unusable};
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tollgate::remote::RemoteError;

/// The settings that only PostgreSQL has.
#[derive(Clone)]
pub struct PostgresSettings {
    pub(super) longest_ttl: Duration,
    pub(super) durable: bool,
    pub(super) polling: Option<Duration>,
}

impl Default for PostgresSettings {
    fn default() -> Self {
        Self {
            longest_ttl: Duration::ZERO,
            durable: true,
            polling: None,
        }
    }
}

impl Connect for Postgres {
    type Own = PostgresSettings;
    const STORE: &'static str = "PostgreSQL";

    fn connect(options: ConnectOptions<Self>) -> Result<Self, RemoteError> {
        if let Some(interval) = options.own.polling {
            check_time_out(interval)?;
        }
        let schema = &*options.prefix;
        let odd = |c: char| !matches!(c, 'a'..='z' | '0'..='9' | '_');
        if schema.is_empty()
            || schema.len() > 48
            || schema.contains(odd)
            || schema.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(unusable(format!(
                "the schema {schema:?} was given, and 1 to 48 lower-case letters, digits and underscores, no digit first, are allowed"
            )));
        }
        let config = options.config()?;
        #[cfg(feature = "postgres-tls")]
        let (config, tls) = options.encrypt(config)?;
        Ok(Postgres::new(&options, |version, channel, subscriptions| {
            let fill = |source: &str| source.replace("{schema}", schema).replace("{v}", version);
            // The sessions of a pooler are not ours.
            let time_outs = channel.map_or(String::new(), |_| time_outs(options.timeout));
            Link {
                config,
                #[cfg(feature = "postgres-tls")]
                tls,
                schema: schema.into(),
                timeout: options.timeout,
                durable: options.own.durable,
                look: format!(
                    "SELECT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace('{schema}') \
                     AND p.proname = 'rates_{version}'), current_setting('transaction_isolation'), \
                     current_setting('synchronous_standby_names'){time_outs}"
                )
                .into(),
                install: SOURCES.map(fill).concat().into(),
                listen: channel.map(|channel| format!("LISTEN {channel}").into()),
                subscriptions,
                current: tokio::sync::Mutex::default(),
                connections: connections(),
            }
        }))
    }
}

impl ConnectOptions<Postgres> {
    /// The longest [time to live](tollgate::remote::RemoteBuilder::ttl) of any process at this store, where they differ: a server
    /// that may have forgotten something grants no permits for this long. Unless it is set, the longest that the server knows and
    /// that of the asking limiter count.
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.own.longest_ttl = ttl;
        self
    }

    /// Does not wait until a commit is on disk. Syncs then take a fraction of the time.
    ///
    /// A server that crashes may forget the last ones: those of the last 600 ms, unless its `wal_writer_delay` is set. Afterwards it
    /// grants no permits until a time to live after the first sync, as a standby that took over does: see [`Postgres`]. So no
    /// permit is granted twice. Tokens of rates that were granted last are there again. All processes at a limiter have to agree on this
    /// setting; otherwise a limiter is as safe as the last sync at it.
    pub fn asynchronous_commit(mut self) -> Self {
        self.own.durable = false;
        self
    }

    /// Does not listen for notifications, which a pooler in transaction mode does not pass on. A waiter for permits asks again at
    /// this interval; a waiter for a window learns of a raised limit when room comes back in it. Prepared statements are not used in
    /// either case.
    ///
    /// Units that are [kept without a use](tollgate::remote::Prefetch) come back to waiting processes with the next renewal.
    pub fn polling(mut self, interval: Duration) -> Self {
        self.own.polling = Some(interval);
        self
    }

    #[cfg(feature = "postgres-tls")]
    fn encrypt(
        &self,
        mut config: Config,
    ) -> Result<(Config, Option<tokio_postgres_rustls::MakeRustlsConnect>), RemoteError> {
        let is_asked = matches!(config.get_ssl_mode(), SslMode::Require);
        let tls = self.tls.clone().or_else(|| is_asked.then(crate::tls::Tls::new));
        config.ssl_mode(if tls.is_some() {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        let client = tls.map(|tls| tls.client_config()).transpose()?;
        Ok((config, client.map(tokio_postgres_rustls::MakeRustlsConnect::new)))
    }

    fn config(&self) -> Result<Config, RemoteError> {
        // The library's messages name the fault, and no password.
        let config: Result<Config, _> = self.address.parse();
        let mut config = config.map_err(|error| unusable(super::link::text(&error)))?;
        if let Some(user) = &self.user {
            config.user(&**user);
        }
        if let Some(password) = &self.password {
            config.password(&**password);
        }
        if config.get_application_name().is_none() {
            config.application_name("tollgate");
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if cfg!(not(feature = "postgres-tls")) && matches!(config.get_ssl_mode(), SslMode::Require) {
            return Err(unusable("sslmode=require needs the feature `postgres-tls`"));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "postgres://gate:very-secret@127.0.0.1/limits";

    #[tokio::test]
    async fn settings_are_checked_and_errors_have_no_secrets() {
        for (given, wrong) in [
            (
                Postgres::options("postgres://gate:very-secret@host:port/limits"),
                "address",
            ),
            (Postgres::options("gate=very-secret"), "address"),
            (Postgres::options(SECRET).prefix(""), "schema"),
            (Postgres::options(SECRET).prefix("Limits"), "schema"),
            (Postgres::options(SECRET).prefix("a\"; DROP TABLE b; --"), "schema"),
            (Postgres::options(SECRET).prefix("1st"), "schema"),
            (Postgres::options(SECRET).timeout(Duration::ZERO), "time-out"),
            (Postgres::options(SECRET).polling(Duration::ZERO), "time-out"),
        ] {
            let error = given.connect().expect_err(wrong).to_string();
            assert!(error.contains(wrong) && !error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn no_secret_is_shown() {
        let options = Postgres::options(SECRET).password("very-secret");
        let shown = format!("{options:?} {:?}", options.clone().connect().unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[cfg(not(feature = "postgres-tls"))]
    #[tokio::test]
    async fn encryption_needs_its_feature() {
        let error = Postgres::options("host=127.0.0.1 sslmode=require")
            .connect()
            .expect_err("no TLS");
        assert!(error.to_string().contains("postgres-tls"), "{error}");
    }
}
