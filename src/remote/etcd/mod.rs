//! etcd as a store: a key for each wish, in the order of their creation, spoken to through the JSON gateway.
//!
//! | file | what it is |
//! |---|---|
//! | `nodes`, `limit` | what lies at the store, and how it is changed |
//! | `kept` | what the keys there say |
//! | `door` | who we say we are |
//! | `lease` | what a session lives by |
//! | `values`, `shared_lease`, `clock` | what is known of a rate or window, how long it stays, and how time passes there |
//! | `wire`, `stream` | what is said and heard |
//! | `options` | where the server is |
//! | `policy` | policies that are pushed from it |
//!
//! Whether a wish is granted is seen from what lies there: see [`queue`](super::queue).

mod auth;
mod clock;
mod keyspace;
mod lease;
mod leases;
mod nodes;
mod options;
#[cfg(feature = "policy-file")]
mod policy;
mod stream;
mod values;
mod wire;

use super::backend::{Backend, Rule, Session, StoreError, SyncReply, SyncRequest};
use super::key::Key;
use super::kv::Ledger;
use super::queue::Queue;
use leases::SharedLeases;
use nodes::Nodes;
pub use options::EtcdOptions;
use parking_lot::Mutex;
#[cfg(feature = "policy-file")]
pub use policy::EtcdPolicy;
use std::fmt;
use wire::Speaker;

/// Permits, rates and windows in etcd 3.4 or later. A handle: clones share their connections, and so can all limiters of a process.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate::remote::{Etcd, Key, Remote};
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
/// Each session has a lease. etcd counts leases in whole seconds, and grants none that is shorter than one and a half times its
/// longest election, 2 s unless it is set up otherwise: a time to live is rounded up to that. It ends leases up to half a second
/// late. So others wait for permits of a process that has died for its time to live, rounded up, and half a second. A process that
/// the server hears, and that does not hear it, gives up after its time to live, and says so: a step that is under way must have
/// run out of time, and the pause after it must be over, a third of the time to live together unless they are set.
///
/// # What it costs
/// A permit that is free takes one round trip, and giving it back another. Whoever waits watches the key, one watch for all
/// waiters of a process, and is told of every change by the server; it asks the server only when its turn has come, so nobody
/// asks in vain. A renewal takes three requests, sent at once, or two beside a change that is due for one. The first step of a session
/// takes three round trips more. A watch whose connection has died without a word is noticed after some 25 s, and one that a proxy
/// keeps open and silent is not: who waits is then served when the lease is renewed.
///
/// # Rates and windows
/// What is known of one is a value under its key. A step of a process puts it anew if nobody else has, and reads it before, unless
/// the process was alone there of late: one round trip, or two. What passes while a process looks on it counts itself; how much has
/// passed before is told by a lease, of which the process asks how much is left, in whole seconds: one round trip more when it
/// comes, when it goes, and now and then, see [`remote`](super#time). Whoever was overtaken reads again, after a pause of up to 64 ms: where more than some hundred steps a second are to be expected of all
/// processes together, take tokens by the [block](super::Prefetch).
///
/// The value goes as soon as the bucket is full again, or the window empty, and the time to live of all sessions is over that have
/// not been closed: whoever put it last deletes it then. It lies under a lease that nobody renews, so that it goes as well when all
/// have died: after up to three times as long, and three seconds. That is one more round trip for a new lease now and then.
///
/// # Fencing
/// Tokens grow with the store's revisions, as long as it keeps its data.
///
/// # What is not promised
/// A new leader prolongs all leases. A server that has lost its data has forgotten who holds what, and what rates gave out, and
/// grants it again at once.
#[derive(Clone)]
pub struct Etcd {
    permits: Queue<Nodes>,
    rates: Ledger<Values>,
}

/// What is known of rates and windows.
pub(crate) struct Values {
    nodes: Nodes,
    shared_leases: SharedLeases,
    /// Who has answered last.
    speaker: Mutex<Speaker>,
}

impl Etcd {
    /// The etcd at `address`: `http://host:port`.
    pub fn options(address: impl Into<Box<str>>) -> EtcdOptions {
        EtcdOptions::new(address.into())
    }

    fn new(nodes: Nodes) -> Self {
        Self {
            permits: Queue::new(nodes.clone()),
            rates: Ledger::new(Values {
                nodes,
                shared_leases: SharedLeases::default(),
                speaker: Mutex::default(),
            }),
        }
    }
}

impl Backend for Etcd {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        match rule {
            Rule::Permits { .. } => self.permits.sync(key, rule, sync).await,
            Rule::Rate { .. } | Rule::Window { .. } => self.rates.sync(key, rule, sync).await,
        }
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.permits.notified(key, session).await;
    }

    fn leave(&self, key: &Key, session: Session) {
        self.permits.leave(key, session);
        self.rates.leave(key, session);
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.permits.store();
        f.debug_struct("Etcd")
            .field("prefix", &nodes.prefix)
            .field("http", &nodes.http)
            .finish()
    }
}
