//! The address and settings of a Consul.

use super::api::Api;
use super::{Consul, Inner};
use crate::connect::{Connect, ConnectOptions, unusable};
use crate::http::HttpOptions;
use std::sync::Arc;
use tollgate::remote::RemoteError;

/// The settings that only Consul has.
#[derive(Clone, Default)]
pub struct ConsulSettings {
    token: Option<Box<str>>,
    datacenter: Option<Box<str>>,
}

impl Connect for Consul {
    type Own = ConsulSettings;
    const STORE: &'static str = "Consul";
    const HAS_USERS: bool = false;

    fn connect(options: ConnectOptions<Self>) -> Result<Self, RemoteError> {
        let mut folders = options.prefix.split('/').rev().skip(1);
        // Consul redirects paths with such parts.
        if folders.any(|folder| matches!(folder, "" | "." | "..")) || options.prefix.contains(char::is_control) {
            return Err(unusable(format!(
                "the prefix {:?} has a part that is empty, `.` or `..`, or control characters",
                options.prefix
            )));
        }
        let mut http = HttpOptions::of(&options);
        if let Some(token) = &options.own.token {
            http.secret("x-consul-token", token)?;
        }
        let api = Api::new(http.connect()?, options.own.datacenter.as_deref());
        Ok(Consul(Arc::new(Inner::new(api, options.prefix))))
    }
}

impl ConnectOptions<Consul> {
    /// The token of an access control list, sent with each call. It needs `key_prefix` with `write` for the
    /// [prefix](Self::prefix), and `session_prefix` with `write` for the nodes that are connected to.
    pub fn token(mut self, token: impl Into<Box<str>>) -> Self {
        self.own.token = Some(token.into());
        self
    }

    /// The datacenter; that of the agent unless set.
    pub fn datacenter(mut self, name: impl Into<Box<str>>) -> Self {
        self.own.datacenter = Some(name.into());
        self
    }
}
