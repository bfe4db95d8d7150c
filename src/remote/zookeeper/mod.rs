//! ZooKeeper as a store: ephemeral sequential nodes, one for each wish.
//!
//! | file | what it is |
//! |---|---|
//! | `names` | what nodes are called, and what a list of names says |
//! | `link` | a session at the servers, and what is done in it |
//! | `session_node` | how a session at a key comes and goes |
//! | `watch_events` | what the server tells of a key |
//! | `options`, `servers` | where the servers are |
//! | `acl` | what we must be allowed |
//! | `values` | what is known of a rate or window |
//!
//! All under a key lies in one node, whose data is the limit, and whose children are the sessions and their wishes. Whether a
//! wish is granted is seen from the names of the children alone: see [`queue`](super::queue).

mod acl;
mod link;
mod names;
mod options;
mod servers;
mod session_node;
mod values;
mod watch_events;

use super::backend::{Backend, Rule, Session, StoreError, SyncReply, SyncRequest};
use super::key::Key;
use super::kv::Ledger;
use super::queue::{Change, NodeQueue, NodeStore, Ops, Queue};
use link::Link;
pub use options::ZookeeperOptions;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Permits, rates and windows in ZooKeeper 3.6 or later. A handle: clones share their sessions, and so can all limiters of a process.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate::remote::{Key, Remote, Zookeeper};
/// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
/// let zookeeper = Zookeeper::options("zoo1:2181,zoo2:2181,zoo3:2181").connect()?;
/// let reports = Remote::permits(Key::new("reports")?, 20).ttl(Duration::from_secs(10));
/// let reports = Arc::new(reports.spawn(zookeeper)?);
/// let permit = reports.acquire_owned(1).await?;
/// assert!(!permit.is_lost());
/// # Ok(())
/// # }
/// ```
///
/// # Times to live
/// Limiters with the same time to live share a session at the servers, which lasts as long. Servers keep sessions for 2 to 20 of
/// their ticks, 4 to 40 s unless they are set up otherwise: a longer time to live is refused with the first step, and with a
/// shorter one others wait for permits of a process that has died as long as the servers' shortest session lasts. They end
/// sessions at whole ticks, so up to one tick later than that. A process that the servers hear, and that does not hear them,
/// tries to come back to its session for 1.4 times its length, and keeps it up for as long: it does not use its permits then, and
/// others wait for them for up to 2.4 times the time to live.
///
/// # What it costs
/// A process that has used a key within the last second, or waits there, watches it: one watch, by which the server tells it of
/// every change. With it a permit that is free takes one round trip, and giving it back another; without, two, since the client
/// does not send a second request before the first is acknowledged. Whoever waits asks the server only when its turn has come,
/// once, so nobody asks in vain. The first step at a key, and of a session, takes a few round trips more.
///
/// # Rates and windows
/// What is known of one is the data of a node under that of the key. A step of a process sets it if it is of the version that the
/// process knows, and reads it before, unless the process was alone there of late: one round trip, or three. What passes while a process
/// looks on it counts itself; how much has passed before is told by the times at which the leader says that nodes were changed. To
/// learn that, a process sets the data of the upper node to what it is, when it comes, when it goes, and once in a minute or less:
/// two round trips more, see [`remote`](super#time). Whoever was overtaken reads again, after a pause of up to 64 ms: where more than some hundred
/// steps a second are to be expected of all processes together, take tokens by the [block](super::Prefetch).
///
/// Both nodes go as soon as the bucket is full again, or the window empty, and the time to live of all sessions is over that have
/// not been closed: whoever set the data last deletes them then, if it still runs; otherwise whoever has used it and is still there.
/// When all have died at once they stay until somebody uses the limiter again.
///
/// # Several servers
/// A renewal is answered for by the leader, not by a follower that the others may have lost. But the leader hears that a session is
/// alive only with the follower's next answer to its own ping. So where a follower is cut off just then, it ends a session earlier
/// than the process gives up its permits, by up to 2/5 of the time to live and half a tick, and others are admitted meanwhile.
/// With a single server that does not happen. Tried with three of which the leader is killed; not with a follower that is cut off.
///
/// # Fencing
/// Tokens are numbers of transactions. They grow as long as the servers keep their data.
///
/// # What is not promised
/// Servers that have lost their data have forgotten who holds what, and what rates gave out, and grant it again at once. Sequence numbers of nodes begin anew after 2^32 at one key; whoever holds a permit that is older
/// than that, while the key was never without a session, may be taken for a newcomer.
#[derive(Clone)]
pub struct Zookeeper {
    permits: Queue<Nodes>,
    rates: Ledger<Nodes>,
}

impl Zookeeper {
    /// The ZooKeeper at `servers`: `host:port`, several by commas.
    pub fn options(servers: impl Into<Box<str>>) -> ZookeeperOptions {
        ZookeeperOptions::new(servers.into())
    }

    fn new(nodes: Nodes) -> Self {
        Self {
            permits: Queue::new(nodes.clone()),
            rates: Ledger::new(nodes),
        }
    }
}

type Linked = Option<Result<Arc<Link>, StoreError>>;

#[derive(Clone)]
pub(crate) struct Nodes {
    options: Arc<ZookeeperOptions>,
    /// Sessions at the servers, by how long they last; those that are being made are empty.
    links: Arc<Mutex<HashMap<Duration, watch::Receiver<Linked>>>>,
}

impl Nodes {
    fn new(options: ZookeeperOptions) -> Self {
        Self {
            options: Arc::new(options),
            links: Arc::default(),
        }
    }

    /// The session of this length, or one that is on its way. Whoever waits for it may go: it is made by a task of its own.
    fn linked(&self, ttl: Duration) -> watch::Receiver<Linked> {
        let mut links = self.links.lock();
        let usable = |linked: &watch::Receiver<Linked>| match &*linked.borrow() {
            None => linked.has_changed().is_ok(),
            Some(Ok(link)) => !link.is_over(),
            Some(Err(_)) => false,
        };
        if let Some(linked) = links.get(&ttl).filter(|linked| usable(linked)) {
            return linked.clone();
        }
        let (making, linked) = watch::channel(None);
        let options = Arc::clone(&self.options);
        tokio::spawn(async move {
            let link = options.link(ttl).await.map(Arc::new);
            // Nobody may be left who wants it.
            let _ = making.send(Some(link));
        });
        links.insert(ttl, linked.clone());
        linked
    }
}

impl NodeStore for Nodes {
    type Term = Link;

    const REPORTS: bool = true;

    fn token(&self, link: &Link, key: &Key, name: &str) -> Option<u64> {
        link.token(key.as_str(), name)
    }

    async fn term(&self, ttl: Duration) -> Result<Arc<Link>, StoreError> {
        let mut linked = self.linked(ttl);
        let linked = linked.wait_for(Option::is_some).await;
        let linked = linked.ok().and_then(|linked| linked.clone());
        let why = "the connection was given up".into();
        linked.unwrap_or(Err(StoreError::Unreachable { why }))
    }

    fn is_over(&self, link: &Link) -> bool {
        link.is_over()
    }

    fn age(&self, link: &Link, at: Instant) -> Duration {
        link.age(at)
    }

    async fn carry_out(
        &self,
        link: &Link,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
        look: bool,
    ) -> Result<Option<NodeQueue>, StoreError> {
        link.carry_out(key.as_str(), limit, session, ops, look).await
    }

    async fn end(&self, link: Option<&Link>, ttl: Duration, key: &Key, session: Session) -> Result<(), StoreError> {
        match link.filter(|link| !link.is_over()) {
            Some(link) => link.end(key.as_str(), session).await,
            None => self.term(ttl).await?.end(key.as_str(), session).await,
        }
    }

    async fn watch(&self, link: &Link, key: &Key, tell: impl Fn(Change) + Send + Sync) {
        // What goes wrong with it is found by the next step.
        let _ = link.watch(key.as_str(), tell).await;
    }
}

impl Backend for Zookeeper {
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

impl fmt::Debug for Zookeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zookeeper")
            .field("options", &self.permits.store().options)
            .finish_non_exhaustive()
    }
}
