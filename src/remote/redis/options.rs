//! Where a Redis is, and how it is spoken to.

use super::Redis;
use crate::remote::error::RemoteError;
use ::redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};
use std::fmt;
use std::time::Duration;

/// The settings of a connection to [`Redis`]. What is printed of them has no secrets.
#[derive(Clone)]
#[must_use = "nothing is connected before `connect`"]
pub struct RedisOptions {
    address: Box<str>,
    user: Option<Box<str>>,
    password: Option<Box<str>>,
    prefix: Box<str>,
    timeout: Duration,
}

impl RedisOptions {
    pub(super) fn new(address: Box<str>) -> Self {
        Self {
            address,
            user: None,
            password: None,
            prefix: "tollgate:".into(),
            timeout: Duration::from_millis(500),
        }
    }

    /// The user to log in as, one of an access control list; that of the address, or Redis's own, unless set.
    pub fn user(mut self, user: impl Into<Box<str>>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password to log in with; that of the address unless set.
    pub fn password(mut self, password: impl Into<Box<str>>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// What all keys and channels begin with; `tollgate:` unless set. Without braces.
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server may take to let us in, and to answer a call: 1 ms to a minute, 500 ms unless set. The limiter has a
    /// time-out of its own; the shorter one counts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the handle. The server is spoken to when it is first needed.
    ///
    /// # Errors
    /// [`RemoteError::Address`] when the address is none, or asks for something that is not compiled in;
    /// [`RemoteError::Duration`]; [`RemoteError::NoRuntime`] outside a tokio runtime.
    pub fn connect(self) -> Result<Redis, RemoteError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(RemoteError::NoRuntime);
        }
        let allowed = (Duration::from_millis(1), Duration::from_secs(60));
        if self.timeout < allowed.0 || self.timeout > allowed.1 {
            return Err(RemoteError::Duration {
                what: "time-out",
                given: self.timeout,
                allowed,
            });
        }
        if self.prefix.contains(['{', '}']) {
            let why = format!("the prefix {:?} has braces", self.prefix).into();
            return Err(RemoteError::Address { why });
        }
        let info = self.info().map_err(|error| unusable(&error))?;
        let client = Client::open(info).map_err(|error| unusable(&error))?;
        Redis::new(client, self.prefix, self.timeout).map_err(|error| unusable(&error))
    }

    fn info(&self) -> Result<ConnectionInfo, RedisError> {
        let info = (*self.address).into_connection_info()?;
        // The third version of the protocol has messages beside answers.
        let mut redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        Ok(info.set_redis_settings(redis))
    }
}

/// The library's messages name what is wrong, and no password.
fn unusable(error: &RedisError) -> RemoteError {
    RemoteError::Address {
        why: error.to_string().into(),
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
