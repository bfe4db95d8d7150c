//! The client, the reference of the stores, and the models of what is between them.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a model needs a part of each source"
)]

#[path = "../../../../../src/remote/backend.rs"]
pub(crate) mod backend;
pub(crate) mod error {
    pub(crate) use tollgate::remote::RemoteError;
}
#[path = "../../../../../src/remote/step.rs"]
pub(crate) mod step;
pub(crate) mod fence {
    pub(crate) use tollgate::remote::Fence;
}
pub(crate) mod key {
    pub(crate) use tollgate::remote::Key;
}

#[path = "../../../../../src/remote/client/mod.rs"]
pub(crate) mod client;
#[path = "../../../../../src/remote/config.rs"]
pub(crate) mod config;

pub(crate) mod model;

mod legs;
mod permits;

/// The settings of a model's client, in microseconds.
pub(super) struct Settings {
    pub(crate) client: u64,
    pub(crate) rule: backend::Rule,
    pub(crate) ttl: u64,
    pub(crate) renewal: u64,
    pub(crate) timeout: u64,
    pub(crate) retry: u64,
    pub(crate) unavailable_after: u64,
    pub(crate) prefetch: Option<config::Prefetch>,
    pub(crate) capacity: bool,
}

impl Settings {
    pub(in crate::remote) fn client(self) -> client::Client {
        let micros = std::time::Duration::from_micros;
        let name = key::Key::new("model").expect("a name");
        let config = config::Config {
            name: name.clone(),
            key: name,
            rule: self.rule,
            set_up: self.rule,
            client: self.client,
            ttl: micros(self.ttl),
            renewal: micros(self.renewal),
            timeout: micros(self.timeout),
            retry: micros(self.retry),
            on_unavailable: config::OnUnavailable::Reject,
            unavailable_after: micros(self.unavailable_after),
            prefetch: self.prefetch,
            capacity: self.capacity,
            quota_is_fixed: self.capacity,
        };
        client::Client::new(config, &crate::time::Clock)
    }
}
