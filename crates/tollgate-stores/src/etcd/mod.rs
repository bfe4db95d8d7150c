//! etcd as a store: a key for each request, in the order of their creation, over the JSON gateway.
//!
//! | file | what it is |
//! |---|---|
//! | `nodes` | the keys at the store, and their changes |
//! | `keyspace` | the parsing of keys |
//! | `auth` | our credentials |
//! | `lease` | the lease of a session |
//! | `values`, `leases`, `clock` | the document of a rate or window, its lifetime, and the clock for it |
//! | `wire`, `stream` | requests and answers |
//! | `options` | the address of the server |
//! | `policy` | policies that are pushed from it |
//!
//! The keys alone decide which requests are granted: see [`queue`](super::queue).

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

use crate::connect::ConnectOptions;
use crate::kv::Ledger;
use crate::queue::Queue;
use leases::SharedLeases;
use nodes::Nodes;
use parking_lot::Mutex;
#[cfg(feature = "policy-file")]
pub use policy::EtcdPolicy;
use std::fmt;
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::{Backend, Rule, Session, StoreError, SyncReply, SyncRequest};
use wire::MemberTerm;

/// Permits, rates and windows in etcd 3.4 or later. A handle: clones share their connections, and so can all limiters of a
/// process.
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
/// # Rates and windows
/// The document of one is a value under its key. A sync replaces it by compare-and-set, and reads it before, unless the process
/// was alone there of late: one round trip, or two. A process counts the time that it observes itself. The time before follows
/// from a lease, whose rest the process reads in whole seconds: one round trip more when it comes, when it goes, and now and
/// then, see [`remote`](tollgate::remote#time). An overtaken sync reads again, after a pause of up to 64 ms. For more than some
/// hundred syncs a second of all processes together, use [`Prefetch`](tollgate::remote::Prefetch).
///
/// The value is deleted once the bucket is full again, or the window empty, and the time to live of all sessions is over that
/// were not closed. Its last writer does that. It lies under a lease that is never renewed, so that it goes as well when all
/// processes have died: after up to three times as long, and three seconds. That is one more round trip for a new lease now and
/// then.
///
/// # Fencing
/// Tokens grow with the store's revisions, as long as it keeps its data.
///
/// # What is not promised
/// A new leader prolongs all leases. A server that has lost its data has forgotten all holders, and the tokens of rates, and
/// grants them again at once.
#[derive(Clone)]
pub struct Etcd {
    permits: Queue<Nodes>,
    rates: Ledger<Values>,
}

/// The values of rates and windows.
pub(crate) struct Values {
    nodes: Nodes,
    shared_leases: SharedLeases,
    /// The server and term of the last answer.
    member_term: Mutex<MemberTerm>,
}

impl Etcd {
    /// The etcd at `address`: `http://host:port`.
    ///
    /// A user is logged in with the first call, and again when the server does not know the token any more. It needs a role with
    /// `readwrite` on all that begins with the [prefix](ConnectOptions::prefix), and for `Etcd::policy` with `read` on the key.
    pub fn options(address: impl Into<Box<str>>) -> ConnectOptions<Self> {
        ConnectOptions::new(address.into(), "tollgate/", Duration::from_secs(5), Default::default())
    }

    fn new(nodes: Nodes) -> Self {
        Self {
            permits: Queue::new(nodes.clone()),
            rates: Ledger::new(Values {
                nodes,
                shared_leases: SharedLeases::default(),
                member_term: Mutex::default(),
            }),
        }
    }
}

impl Backend for Etcd {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        match rule {
            Rule::Permits { .. } => self.permits.sync(key, rule, sync).await,
            _ => self.rates.sync(key, rule, sync).await,
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
