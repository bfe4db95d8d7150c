//! The Consul that tests share.

use crate::store::key;
use std::net::SocketAddr;
use std::time::Duration;
use tollgate::remote::{Backend, Key};
use tollgate_stores::{Consul, ConsulSlots};

/// No test depends on how long a server takes to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The shortest time to live of a session, and how long it lives at most in silence.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
pub(crate) const GONE: Duration = Duration::from_secs(2);

/// The server that `ci/with-stores consul` started.
pub(crate) fn server() -> SocketAddr {
    let address = std::env::var("TOLLGATE_CONSUL")
        .expect("TOLLGATE_CONSUL has the address of a server; ci/with-stores consul starts one");
    let address = address.strip_prefix("http://").expect("it is one of HTTP");
    address.parse().expect("it is an address")
}

/// A store of either kind, as tests make them.
pub(crate) trait Kind: Backend + Clone {
    fn at(address: SocketAddr) -> Self;
}

impl Kind for Consul {
    fn at(address: SocketAddr) -> Self {
        let options = Consul::options(format!("http://{address}")).timeout(PATIENCE);
        options.connect().expect("settings that can be")
    }
}

impl Kind for ConsulSlots {
    fn at(address: SocketAddr) -> Self {
        Consul::at(address).slots()
    }
}

/// A client of the shared server, and a name that no other test uses.
pub(crate) fn store<B: Kind>() -> (B, Key) {
    (B::at(server()), key())
}

/// The keys of this limiter at the shared server.
pub(crate) fn keys(key: &Key) -> Vec<String> {
    let path = format!("/v1/kv/tollgate/{key}.?keys=true");
    match &*crate::consul::ask(server(), "GET", &path, "").expect("the server answers") {
        "" => Vec::new(),
        keys => serde_json::from_str(keys).expect("a list"),
    }
}
