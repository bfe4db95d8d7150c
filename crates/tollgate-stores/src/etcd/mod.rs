//! etcd as a store: a key for each request, in the order of their creation, over the JSON gateway.
//!
//! | file | what it is |
//! |---|---|
//! | `nodes` | the keys at the store, and their changes |
//! | `keyspace` | the parsing of keys |
//! | `auth` | our credentials |
//! | `lease` | the lease of a session |
//! | `wire`, `stream` | requests and answers |
//! | `options` | the address of the server |
//! | `policy` | policies that are pushed from it |
//!
//! The keys alone decide which requests are granted: see [`queue`](super::queue).

mod auth;
mod keyspace;
mod lease;
mod nodes;
mod options;
#[cfg(feature = "policy-file")]
mod policy;
mod stream;
mod wire;

use crate::clockless::permits_only;
use crate::connect::ConnectOptions;
use crate::queue::Queue;
use nodes::Nodes;
#[cfg(feature = "policy-file")]
pub use policy::EtcdPolicy;
use std::fmt;
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::{Backend, RemoteError, Rule, Session, StoreError, SyncReply, SyncRequest};

/// Permits in etcd 3.4 or later, and rates by [leased capacity](tollgate::remote::RemoteBuilder::capacity). A handle: clones
/// share their connections, and so can all limiters of a process.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate::remote::{Key, Remote};
/// # use tollgate_stores::Etcd;
/// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
/// let etcd = Etcd::options("http://127.0.0.1:2379").connect()?;
/// let reports = Remote::permits(Key::new("reports")?, 20).ttl(Duration::from_secs(10));
/// let reports = Arc::new(reports.spawn(etcd)?);
/// let permit = reports.acquire_owned(1).await?;
/// assert!(!permit.is_lost());
/// # Ok(())
/// # }
/// ```
///
/// # Times to live
/// Each session has a lease. etcd counts leases in whole seconds, and grants none shorter than one and a half times its longest
/// election, 2 s unless it is set up otherwise: a time to live is rounded up to that. It ends leases up to half a second late.
/// So others wait for permits of a dead process for its time to live, rounded up, and half a second. A process that the server
/// hears, but that does not hear it, notices and gives up after its time to live: the current sync must time out, and the pause
/// after it must be over. That takes a third of the time to live in total, unless they are set.
///
/// # What it costs
/// A free permit takes one round trip, and giving it back another. A waiter watches the key, with one watch for all waiters of
/// a process, by which the server reports every change. It asks the server only when its turn has come, and never in vain. A
/// renewal takes three requests, sent at once, or two beside a change that is due for one. The first sync of a session takes
/// three round trips more. A watch whose connection has died silently is noticed after some 25 s. One that a proxy keeps open
/// and silent is not: its waiters are then served when the lease is renewed.
///
/// # Fencing
/// Tokens grow with the store's revisions, as long as it keeps its data.
///
/// # What is not promised
/// A new leader prolongs all leases. A server that has lost its data has forgotten all holders, and grants their permits again
/// at once.
#[derive(Clone)]
pub struct Etcd(Queue<Nodes>);

impl Etcd {
    /// The etcd at `address`: `http://host:port`.
    ///
    /// A user is logged in with the first call, and again when the server does not know the token any more. It needs a role with
    /// `readwrite` on all that begins with the [prefix](ConnectOptions::prefix), and for `Etcd::policy` with `read` on the key.
    pub fn options(address: impl Into<Box<str>>) -> ConnectOptions<Self> {
        ConnectOptions::new(address.into(), "tollgate/", Duration::from_secs(5), Default::default())
    }

    fn new(nodes: Nodes) -> Self {
        Self(Queue::new(nodes))
    }
}

impl Backend for Etcd {
    fn supports(&self, rule: &Rule, _ttl: Duration) -> Result<(), RemoteError> {
        permits_only(rule, "etcd")
    }

    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        self.0.sync(key, rule, sync).await
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.0.notified(key, session).await;
    }

    fn leave(&self, key: &Key, session: Session) {
        self.0.leave(key, session);
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.0.store();
        f.debug_struct("Etcd")
            .field("prefix", &nodes.prefix)
            .field("http", &nodes.http)
            .finish()
    }
}
