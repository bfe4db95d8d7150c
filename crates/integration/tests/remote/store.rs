//! The store that tests share, and stores of their own.

use crate::raw_session::{LONG, RawSession};
use crate::redis::Redis as Program;
use crate::rig::server::Server;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::remote::{Key, Rule};
use tollgate_stores::Redis;

/// No test depends on how long a server takes to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server that `ci/with-stores redis` started.
pub(crate) fn server() -> SocketAddr {
    let address = std::env::var("TOLLGATE_REDIS")
        .expect("TOLLGATE_REDIS has the address of a server; ci/with-stores redis starts one");
    let address = address.strip_prefix("redis://").unwrap_or(&address);
    address.trim_end_matches('/').parse().expect("an address")
}

/// A client of that server.
pub(crate) fn store() -> Redis {
    at(server())
}

/// A client of that server, and a name that the server knows and grants at.
pub(crate) async fn opened(rule: Rule) -> (Redis, Key) {
    let (store, key) = (store(), key());
    RawSession::new(&store, &key, rule, LONG).open().await;
    (store, key)
}

/// A server of the test's own, a client of it, and a name.
pub(crate) async fn own_unopened() -> (Server<Program>, Redis, Key) {
    let server = Server::start(Program).await.expect("a server");
    let store = at(server.address());
    (server, store, key())
}

/// The same, where the server knows the name and grants.
pub(crate) async fn own(rule: Rule) -> (Server<Program>, Redis, Key) {
    let (server, store, key) = own_unopened().await;
    RawSession::new(&store, &key, rule, LONG).open().await;
    (server, store, key)
}

/// A client of the server there.
pub(crate) fn at(address: SocketAddr) -> Redis {
    connect(&format!("redis://{address}/"))
}

fn connect(address: &str) -> Redis {
    let options = Redis::options(address).timeout(PATIENCE);
    options.connect().expect("settings that can be")
}

/// A name that no other test uses, nor a failed one that left something behind.
pub(crate) fn key() -> Key {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number has to be unique.
    let number = KEYS.fetch_add(1, Ordering::Relaxed);
    Key::new(format!("test-{}-{number}", std::process::id())).expect("a name")
}

/// How many times as long random tests run as in `ci/test`.
pub(crate) fn times() -> u64 {
    let times = std::env::var("TOLLGATE_TIMES");
    times.map_or(1, |times| times.parse().expect("TOLLGATE_TIMES is a number"))
}

/// The part of a name that decides its slot in a cluster.
pub(crate) fn tag(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.expect("the name has a hash tag").0.to_owned()
}
