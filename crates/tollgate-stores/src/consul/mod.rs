//! Consul as a store, twice: with a document of holders, which is [`Consul`], and with slots, which is [`ConsulSlots`].
//!
//! | | [`Consul`] | [`ConsulSlots`] |
//! |---|---|---|
//! | permits | up to [`MAX_UNITS`](tollgate::remote::MAX_UNITS) | up to 60 |
//! | order | first come, first served | nearly |
//! | an acquire that finds permits | a read and a write | a read and a write |
//! | conflicts | between all writers of the document | between requests for the same slot |
//! | rates | by leased capacity | no |
//! | windows | no | no |
//!
//! # Sessions
//! Each session of a limiter is a session of Consul's, whose keys are deleted when it ends. Consul ends a silent session at the
//! earliest after its time to live, and in fact after twice as long. So permits of a dead process are back after *twice* the
//! [time to live](tollgate::remote::RemoteBuilder::ttl), and a tenth of it. Processes count their own leases by the
//! shorter time, from the instant on at which a renewal was sent. A server that takes the lead counts all sessions anew.
//!
//! Sessions depend on no health check, and have no lock delay unless [set](ConsulSlots::lock_delay): the shorter leases of the
//! processes keep a permit from having two holders, as long as Consul ends no session before its time.
//!
//! **Over-admission**: Consul ends a session early when the node of its agent is deregistered, or when an operator destroys the
//! session. An agent that leaves is deregistered, and client agents leave when they are stopped, unless `leave_on_terminate =
//! false`. Others get the permits then, while a holder that cannot reach its agent does not know it before its lease is over:
//! for up to a time to live one permit may have two holders. So set that on agents, or connect to the servers; or take slots
//! with a lock delay. A document cannot have one, since its units are not locked keys.
//!
//! The first three waiting sessions check for dead ones. When all three of them are dead as well, the others find out when they
//! renew. A session whose creation was answered too late holds nothing, and ends by itself.
//!
//! # What it needs
//! Consul 1.8 or later. A time to live of 10 s to a day: the shortest is the server's `session_ttl_min`, and syncs with a
//! shorter one are [refused](tollgate::remote::StoreError::Refused). One connection for each limiter with waiters
//! (`limits.http_max_conns_per_client` is 200 unless set). With access control lists, a token with `key_prefix` "tollgate/" and
//! `session_prefix` "", both `write`. Locks are advisory, so no other token should have the first.
//!
//! # What is not promised
//! Consul writes to a majority of its servers before it answers, and forgets nothing when servers change. A cluster that is
//! restarted without data, or from a snapshot, has forgotten the holders, and its tokens may be smaller than they were: keep
//! all processes from it for a time to live, and tell resources that check fences.

mod api;
mod holders;
mod kv;
mod options;
#[cfg(feature = "policy-file")]
mod policy;
mod sessions;
mod slots;
#[cfg(test)]
mod tests;

use crate::clockless::{permits, permits_only};
use crate::connect::ConnectOptions;
use api::Api;
#[cfg(feature = "policy-file")]
pub use policy::ConsulPolicy;
use sessions::{ConsulSession, ConsulSessions};
pub use slots::ConsulSlots;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::RemoteError;
use tollgate::remote::{Rule, StoreError, SyncReply, SyncRequest};

/// Permits in Consul, in a document, and rates by [leased capacity](tollgate::remote::RemoteBuilder::capacity). All permits of a
/// limiter, their holders and the queue are one value, changed by check-and-set. A handle: clones share connections.
///
/// Requests are served in the order in which they reach the store. A waiter sleeps on a key of its own. The sync that returns
/// units writes to that key along with the document: no other waiter is woken.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tollgate::remote::{Key, Remote};
/// # use tollgate_stores::Consul;
/// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
/// let consul = Consul::options("http://127.0.0.1:8500").token("secret").connect()?;
/// let reports = Arc::new(Remote::permits(Key::new("reports")?, 20).spawn(consul)?);
/// let permit = reports.acquire_owned(1).await?;
/// assert!(!permit.is_lost());
/// # Ok(())
/// # }
/// ```
///
/// # Bounds
/// The document is at most 320 KiB long: some thousand sessions, or waiting requests. A sync that would make it longer is
/// [refused](tollgate::remote::StoreError::Refused). Each sync reads the document and one key for each session.
///
/// Nothing is left when the last session ends. When the last ones die, or end while a dead one is not gone yet, the document
/// stays until the limiter is used again, which ends them.
#[derive(Clone)]
pub struct Consul(Arc<Inner>);

struct Inner {
    api: Api,
    prefix: Box<str>,
    consul_sessions: ConsulSessions,
}

impl Inner {
    fn new(api: Api, prefix: Box<str>) -> Self {
        Self {
            api,
            prefix,
            consul_sessions: ConsulSessions::default(),
        }
    }
}

impl Consul {
    /// The Consul at `address`, such as `http://127.0.0.1:8500`: best the agent of this machine.
    pub fn options(address: impl Into<Box<str>>) -> ConnectOptions<Self> {
        ConnectOptions::new(address.into(), "tollgate/", Duration::from_secs(1), Default::default())
    }
}

/// Checks the time to live of sessions.
fn supports(ttl: Duration) -> Result<(), RemoteError> {
    let allowed = (Duration::from_secs(1), Duration::from_secs(86_400));
    if ttl < allowed.0 || ttl > allowed.1 {
        let (what, given) = ("time to live", ttl);
        return Err(RemoteError::Duration { what, given, allowed });
    }
    Ok(())
}

/// A way to keep permits: a document or slots.
trait Keeping: Sync {
    fn inner(&self) -> &Inner;

    /// Reads the keys in `folder`, and carries out `sync`. `None` when another writer was quicker.
    fn attempt(
        &self,
        folder: &str,
        limit: u64,
        sync: &SyncRequest,
        consul_session: Option<&ConsulSession>,
    ) -> impl Future<Output = Result<Option<SyncReply>, StoreError>> + Send;
}

/// Carries out a sync: creates or renews its session, and repeats the attempt until no other writer was quicker.
async fn sync(keeping: &impl Keeping, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
    let Inner {
        api,
        consul_sessions,
        prefix,
    } = keeping.inner();
    let limit = permits(rule)?;
    let folder = folder(prefix, &key.of_kind(rule.kind()));
    let started = consul_sessions.now();
    let consul_session = consul_sessions.of(api, key, sync).await?;
    let consul_session = consul_session.as_deref();
    let mut attempts: u32 = 0;
    let mut reply = loop {
        // The session is renewed beside, if it is due.
        let keep = async {
            match consul_session.filter(|_| !sync.end) {
                // Our own session may be the condition that does not hold.
                Some(consul_session) if attempts % 4 == 3 => consul_session.renew(api).await,
                Some(consul_session) => consul_session.keep(api, sync.ttl).await,
                None => Ok(()),
            }
        };
        let attempt = keeping.attempt(&folder, limit, sync, consul_session);
        let ((), reply) = futures::future::try_join(keep, attempt).await?;
        let is_lost = consul_session.is_some_and(ConsulSession::is_lost);
        if let Some(consul_session) = consul_session {
            consul_session.set_overtaken(reply.is_none());
        }
        match reply {
            // It was lost meanwhile.
            Some(reply) if reply.alive && is_lost => {}
            Some(reply) => break reply,
            None => {}
        }
        attempts += 1;
        tokio::time::sleep(consul_sessions.part_of(Duration::from_millis(1 << attempts.min(6)))).await;
    };
    match consul_session {
        Some(consul_session) if reply.alive => reply.age = consul_session.age_at(started),
        Some(consul_session) if sync.end => {
            // Its locked keys are gone already, so no waiter depends on this; but its writes may still arrive until it is done.
            api.destroy(&consul_session.id).await?;
            consul_sessions.remove(key, sync.session);
        }
        _ => consul_sessions.remove(key, sync.session),
    }
    Ok(reply)
}

/// The folder of a limiter, whose key names its kind. It has no keys of other limiters: a slash in the name is escaped.
fn folder(prefix: &str, key: &Key) -> String {
    let name = key.as_str().replace('%', "%25").replace('/', "%2F");
    format!("{prefix}{name}/")
}

impl fmt::Debug for Consul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consul")
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}
