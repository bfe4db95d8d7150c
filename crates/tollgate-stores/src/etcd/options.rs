//! The address and settings of an etcd.

use super::auth::AuthHttp;
use super::{Etcd, Nodes};
use crate::connect::{Connect, ConnectOptions, unusable};
use crate::http::HttpOptions;
use tollgate::remote::RemoteError;

/// The settings that only etcd has.
#[derive(Clone, Default)]
pub struct EtcdSettings {
    token: Option<Box<str>>,
}

impl Connect for Etcd {
    type Own = EtcdSettings;
    const STORE: &'static str = "etcd";

    fn connect(options: ConnectOptions<Self>) -> Result<Self, RemoteError> {
        if options.prefix.is_empty() {
            return Err(unusable("the prefix is empty"));
        }
        let (mut http, user) = (HttpOptions::of(&options), options.credentials()?);
        if let Some(token) = &options.own.token {
            if user.is_some() {
                return Err(unusable("both a user and a token are given"));
            }
            http.secret("authorization", token)?;
        }
        let http = AuthHttp::new(http.connect()?, user);
        Ok(Etcd::new(Nodes::new(http, options.prefix)))
    }
}

impl ConnectOptions<Etcd> {
    /// The token to authenticate with, instead of a password: for example a JWT. It is not renewed: etcd's simple tokens end
    /// when they have not been used for five minutes.
    pub fn token(mut self, token: impl Into<Box<str>>) -> Self {
        self.own.token = Some(token.into());
        self
    }
}
