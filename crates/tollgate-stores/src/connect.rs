//! The settings that connections to all stores have in common.

#[cfg(feature = "tls")]
use crate::tls::Tls;
use std::fmt;
use std::time::Duration;
use tokio::runtime::Handle;
use tollgate::remote::RemoteError;

/// A store that is connected to, by [`ConnectOptions`].
pub trait Connect: Sized {
    /// The settings that no other store has.
    type Own: Clone;
    /// The name of the store.
    const STORE: &'static str;
    /// Whether users log in by name and password.
    const HAS_USERS: bool = true;

    /// Creates the handle. The time-out was checked, and there is a runtime.
    ///
    /// # Errors
    /// [`RemoteError`], without secrets.
    fn connect(options: ConnectOptions<Self>) -> Result<Self, RemoteError>;
}

/// The settings of a connection to a store. Its debug output has no address and no secrets.
///
/// ```
/// # use tollgate_stores::Redis;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let options = Redis::options("redis://127.0.0.1:6379").user("gate").password("secret").prefix("limits:");
/// assert!(!format!("{options:?}").contains("secret"));
/// let redis = options.connect()?;
/// # drop(redis);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct ConnectOptions<S: Connect> {
    pub(crate) address: Box<str>,
    pub(crate) user: Option<Box<str>>,
    pub(crate) password: Option<Box<str>>,
    pub(crate) prefix: Box<str>,
    pub(crate) timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    #[cfg_attr(
        not(any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis")),
        allow(dead_code, reason = "ZooKeeper has none")
    )]
    pub(crate) own: S::Own,
}

impl<S: Connect> ConnectOptions<S> {
    pub(crate) fn new(address: Box<str>, prefix: &str, timeout: Duration, own: S::Own) -> Self {
        Self {
            address,
            user: None,
            password: None,
            prefix: prefix.into(),
            timeout,
            #[cfg(feature = "tls")]
            tls: None,
            own,
        }
    }

    /// The user to log in as; that of the address, if it names one, unless set. In ZooKeeper by the scheme `digest`. Consul has tokens
    /// instead.
    pub fn user(mut self, user: impl Into<Box<str>>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password to log in with; that of the address, if it has one, unless set.
    pub fn password(mut self, password: impl Into<Box<str>>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// What all names of keys and channels begin with. Limiters of different prefixes share nothing.
    ///
    /// | store | unless set | allowed |
    /// |---|---|---|
    /// | Redis | `tollgate:` | no braces |
    /// | PostgreSQL | `tollgate` | a schema: 1 to 48 lower-case letters, digits and underscores, and no digit first |
    /// | Consul | `tollgate/` | no part that is empty, `.` or `..` |
    /// | etcd | `tollgate/` | not empty |
    /// | ZooKeeper | `/tollgate` | a path: the node above all others, which is created if it is missing |
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the store may take to log us in, and to answer a call: 1 ms to a minute. Unless set, 500 ms for Redis and PostgreSQL, a
    /// second for Consul, and five for etcd and ZooKeeper; in ZooKeeper it bounds the log-in only. A sync of a limiter is one call or
    /// several, and has a time-out of its own; the shorter one counts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The certificates of an encrypted connection, if they are not the system's. For addresses that begin with `rediss://` or
    /// `https://`; in PostgreSQL, which needs the feature `postgres-tls`, it encrypts the connection, as `sslmode=require` in the address
    /// does. In ZooKeeper it encrypts connections, to the port that the servers call `secureClientPort`; the roots must be named.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Creates the handle. It connects when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the address or the prefix cannot be used, or a user was given without a password or to a store
    /// without users, or the address asks for encryption that is not compiled in, or has certificates and asks for none;
    /// `RemoteError::Certificate`; [`RemoteError::Duration`]; [`RemoteError::NoRuntime`] outside a tokio runtime.
    pub fn connect(self) -> Result<S, RemoteError> {
        runtime()?;
        check_time_out(self.timeout)?;
        if !S::HAS_USERS && (self.user.is_some() || self.password.is_some()) {
            return Err(unusable(format!("{} has tokens, and no users", S::STORE)));
        }
        S::connect(self)
    }

    /// The name and the password, of a store where neither is in the address.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn credentials(&self) -> Result<Option<(&str, &str)>, RemoteError> {
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => Ok(Some((user, password))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(unusable("there is a user, and no password")),
            (None, Some(_)) => Err(unusable("there is a password, and no user")),
        }
    }
}

impl<S: Connect> fmt::Debug for ConnectOptions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("store", &S::STORE)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Checks how long a store may take to answer a call: 1 ms to a minute.
pub(crate) fn check_time_out(given: Duration) -> Result<(), RemoteError> {
    let allowed = (Duration::from_millis(1), Duration::from_secs(60));
    if given < allowed.0 || given > allowed.1 {
        let what = "time-out";
        return Err(RemoteError::Duration { what, given, allowed });
    }
    Ok(())
}

/// The current runtime.
pub(crate) fn runtime() -> Result<Handle, RemoteError> {
    Handle::try_current().map_err(|_| RemoteError::NoRuntime)
}

/// An address or another text that cannot be used.
pub(crate) fn unusable(why: impl Into<Box<str>>) -> RemoteError {
    RemoteError::Address { why: why.into() }
}

#[cfg(all(test, feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod tests {
    use super::*;
    use crate::{Consul, Etcd, Zookeeper};

    #[test]
    fn outside_a_runtime_there_is_no_client() {
        let refused = Etcd::options("http://a").connect().unwrap_err();
        assert_eq!(refused, RemoteError::NoRuntime);
    }

    #[tokio::test]
    async fn settings_that_a_store_cannot_use_are_refused() {
        let zero = Consul::options("http://a").timeout(Duration::ZERO).connect();
        assert!(matches!(zero.unwrap_err(), RemoteError::Duration { .. }));
        for refused in [
            Consul::options("http://a").user("gate").connect().map(drop),
            Etcd::options("http://a").user("gate").connect().map(drop),
            Etcd::options("http://a").password("very-secret").connect().map(drop),
            Zookeeper::options("a:1").password("very-secret").connect().map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, RemoteError::Address { .. }), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
