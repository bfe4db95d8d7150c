//! ZooKeeper as a store: ephemeral sequential nodes, one for each request.
//!
//! | file | what it is |
//! |---|---|
//! | `names` | the names of nodes, and the state in a list of names |
//! | `link` | a session at the servers, and its operations |
//! | `session_node` | the begin and end of a session at a key |
//! | `watch_events` | the events of a key |
//! | `options`, `servers` | the addresses of the servers |
//! | `acl` | the check of our rights |
//!
//! A key is one node, whose data is the limit, and whose children are the sessions and their requests. The names of the
//! children alone decide which requests are granted: see [`queue`](super::queue).

mod acl;
mod link;
mod names;
mod options;
mod servers;
mod session_node;
mod watch_events;

use crate::clockless::permits_only;
use crate::connect::ConnectOptions;
use crate::queue::{Change, NodeQueue, NodeStore, Ops, Queue};
use link::Link;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate::remote::Key;
use tollgate::remote::{Backend, RemoteError, Rule, Session, StoreError, SyncReply, SyncRequest};

/// Permits in ZooKeeper 3.6 or later, and rates by [leased capacity](tollgate::remote::RemoteBuilder::capacity). A handle:
/// clones share their sessions, and so can all limiters of a process.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate::remote::{Key, Remote};
/// # use tollgate_stores::Zookeeper;
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
/// Limiters with the same time to live share a session at the servers, which lasts as long. Servers keep sessions for 2 to 20
/// of their ticks, 4 to 40 s unless they are set up otherwise. A longer time to live is refused with the first sync. With a
/// shorter one others wait for permits of a dead process as long as the servers' shortest session. They end sessions at whole
/// ticks, so up to one tick later than that. A process that the servers hear, but that does not hear them, tries to resume its
/// session for 1.4 times its length, and keeps it up for as long. It does not use its permits then, and others wait for them
/// for up to 2.4 times the time to live.
///
/// # What it costs
/// A process that has used a key within the last second, or waits there, watches it: one watch, by which the server reports
/// every change. With it a free permit takes one round trip, and giving it back another; without, two, since the client does
/// not send a second request before the first is acknowledged. A waiter asks the server only when its turn has come, once, and
/// never in vain. The first sync at a key, and of a session, takes a few round trips more.
///
/// # Several servers
/// The leader confirms a renewal, not a follower that the others may have lost. But the leader hears that a session is alive
/// only with the follower's next answer to its own ping.
///
/// **Over-admission**: where a follower is cut off just then, the leader ends a session earlier than the process gives up its
/// permits, by up to 2/5 of the time to live and half a tick, and others are admitted meanwhile. With a single server that does
/// not happen. It was tested with three servers of which the leader is killed, but not with a follower that is cut off.
///
/// # Fencing
/// Tokens are numbers of transactions. They grow as long as the servers keep their data.
///
/// # What is not promised
/// Servers that have lost their data have forgotten all holders, and grant their permits again at once.
/// Sequence numbers of nodes begin anew after 2^32 at one key. The holder of a permit older than that, while the key was never
/// without a session, may be taken for a newcomer.
#[derive(Clone)]
pub struct Zookeeper(Queue<Nodes>);

impl Zookeeper {
    /// The ZooKeeper at `servers`: `host:port`, several by commas.
    ///
    /// New nodes are for the user only, if there is one; existing nodes, and the prefix, keep their access control lists. We must be
    /// allowed to create and to delete under the prefix, `cd`; otherwise the first sync is refused before anything is done.
    pub fn options(servers: impl Into<Box<str>>) -> ConnectOptions<Self> {
        ConnectOptions::new(servers.into(), "/tollgate", Duration::from_secs(5), ())
    }

    fn new(nodes: Nodes) -> Self {
        Self(Queue::new(nodes))
    }
}

type Linked = Option<Result<Arc<Link>, StoreError>>;

#[derive(Clone)]
pub(crate) struct Nodes {
    options: Arc<ConnectOptions<Zookeeper>>,
    /// Sessions at the servers, by their length; those under construction are empty.
    links: Arc<Mutex<HashMap<Duration, watch::Receiver<Linked>>>>,
}

impl Nodes {
    fn new(options: ConnectOptions<Zookeeper>) -> Self {
        Self {
            options: Arc::new(options),
            links: Arc::default(),
        }
    }

    /// The session of this length, or one under construction. Its caller may stop waiting: a task of its own creates it.
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
            // The caller may have stopped waiting.
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
        // The next sync finds a failure of it.
        let _ = link.watch(key.as_str(), tell).await;
    }
}

impl Backend for Zookeeper {
    fn supports(&self, rule: &Rule, _ttl: Duration) -> Result<(), RemoteError> {
        permits_only(rule, "ZooKeeper")
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

impl fmt::Debug for Zookeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zookeeper")
            .field("options", &self.0.store().options)
            .finish_non_exhaustive()
    }
}
