//! Consul as a store, twice: with a document of holders, which is [`Consul`], and with slots, which is [`ConsulSlots`].
//!
//! | | [`Consul`] | [`ConsulSlots`] |
//! |---|---|---|
//! | permits | up to [`MAX_UNITS`](super::MAX_UNITS) | up to 60 |
//! | who is served first | who asked first | who asked first, nearly |
//! | an acquire that finds permits | a read and a write | a read and a write |
//! | in each other's way are | all who change the document | those who want the same slot |
//! | rates and windows | yes | yes, the same |
//!
//! # Sessions
//! Each session of a limiter is a session of Consul's, whose keys are deleted when it ends. Consul ends a session that was not
//! renewed at the earliest after its time to live, and in fact after twice as long: so permits of a process that has died are
//! back after *twice* the [time to live](super::RemoteBuilder::ttl), and a tenth of it. Processes count their own leases by the
//! shorter time, from the instant on at which a renewal was sent. A server that takes the lead counts all sessions anew.
//!
//! Sessions hang on no health check, and have no lock delay unless [set](ConsulSlots::lock_delay): the shorter leases of the
//! processes are what keeps two from holding one permit, as long as Consul ends no session before its time. It does so when the
//! node through whose agent the session was made is deregistered, or when somebody destroys the session. An agent that leaves is
//! deregistered, and client agents leave when they are stopped, unless `leave_on_terminate = false`. Others are granted the
//! permits then, while a holder that cannot reach its agent knows nothing of it before its lease is over: for up to a time to
//! live there may be two holders of one permit. So set that on agents, or speak to the servers; or take slots with a lock delay,
//! which a document cannot have: what a session holds in it is no key that it has locked.
//!
//! The first three sessions that wait look out for the dead; when all three of them are dead as well, the others find out when they
//! renew. A session that was made though nobody heard the answer holds nothing, and ends by itself.
//!
//! # Rates and windows
//! What is known of one is a value under `rate` in the folder of the limiter. A step of a process writes it anew if nobody else has,
//! and reads it before, unless the process was alone there of late: one round trip, or two. It has no session of Consul's, and any
//! time to live will do. What it takes stays counted whoever dies. Consul keeps no clock that could be asked for the time: what comes
//! while nobody looks on who has taken is lost, and processes that live for an instant each never see anything come back. Keep one
//! that lives long, and takes [`Prefetch`](super::Prefetch) for them; see [`remote`](super#time).
//!
//! Processes are in each other's way there: whoever was overtaken reads again, after a pause of up to 64 ms. Where more than some
//! hundred steps a second are to be expected of all of them together, take tokens by the [block](super::Prefetch): a step carries
//! what a whole process wants.
//!
//! The value goes when it is as good as none: as soon as the bucket is full again, or the window empty, and the time to live of all
//! sessions is over that have not been closed. Whoever wrote it last takes it away then, if it still runs; otherwise whoever has
//! used it and is still there. When all have died at once it stays until somebody uses the limiter again.
//!
//! # What it needs
//! Consul 1.8 or later. A time to live of 10 s to a day: the shortest is the server's `session_ttl_min`, and steps with a shorter
//! one are [refused](super::StoreError::Refused). One connection for each
//! limiter of a process that waits (`limits.http_max_conns_per_client` is 200 unless set). With access control lists, a token with
//! `key_prefix` "tollgate/" and `session_prefix` "", both `write`; locks are advisory, so that nobody else should have the
//! first.
//!
//! # What is not promised
//! Consul writes to a majority of its servers before it answers, and forgets nothing when servers change. A cluster that is
//! started anew with nothing, or from a snapshot, has forgotten who holds what, and its tokens may be smaller than they were: keep
//! all processes from it for a time to live, and tell resources that check fences. What rates gave out since is there again.

mod api;
mod holders;
#[cfg(test)]
mod model;
mod options;
#[cfg(feature = "policy-file")]
mod policy;
mod sessions;
mod slots;
mod values;

use super::backend::{Rule, Session, StoreError, SyncReply, SyncRequest};
use super::error::RemoteError;
use super::key::Key;
use super::kv::Ledger;
use api::Api;
pub use options::ConsulOptions;
#[cfg(feature = "policy-file")]
pub use policy::ConsulPolicy;
use sessions::{ConsulSession, ConsulSessions};
pub use slots::ConsulSlots;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use values::Folders;

/// Permits in Consul, in a document, and rates and windows: all of a limiter's permits, their holders and the queue are one value, which is read,
/// changed, and written if nobody else has changed it meanwhile. A handle: clones share connections.
///
/// Requests are served in the order in which they reach the store. Who waits sleeps on a key of its own, and whoever gives back
/// writes to that key in the same step as to the document: nobody else is woken.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tollgate::remote::{Consul, Key, Remote};
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
/// The document is at most 320 KiB long: some thousand sessions, or wishes that wait. A step that would make it longer is
/// [refused](super::StoreError::Refused). Each step reads the document and one line for each session.
///
/// Nothing is left when the last session ends. When the last ones die, or end while one that has died is not gone yet, the
/// document stays until somebody uses the limiter again, who finds them gone.
#[derive(Clone)]
pub struct Consul(Arc<Inner>);

struct Inner {
    api: Api,
    prefix: Box<str>,
    consul_sessions: ConsulSessions,
    rates: Ledger<Folders>,
}

impl Inner {
    fn new(api: Api, prefix: Box<str>) -> Self {
        let folders = Folders {
            api: api.clone(),
            prefix: prefix.clone(),
        };
        Self {
            api,
            prefix,
            consul_sessions: ConsulSessions::default(),
            rates: Ledger::new(folders),
        }
    }
}

impl Consul {
    /// The Consul at `address`, such as `http://127.0.0.1:8500`: best the agent of this machine.
    pub fn options(address: impl Into<Box<str>>) -> ConsulOptions {
        ConsulOptions::new(address.into())
    }
}

/// How long sessions can live. Rates and windows have none at the store.
fn supports(rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
    let allowed = (Duration::from_secs(1), Duration::from_secs(86_400));
    if matches!(rule, Rule::Permits { .. }) && (ttl < allowed.0 || ttl > allowed.1) {
        let (what, given) = ("time to live", ttl);
        return Err(RemoteError::Duration { what, given, allowed });
    }
    Ok(())
}

/// Either of the two ways to keep permits.
trait Keeping: Sync {
    fn inner(&self) -> &Inner;

    /// Reads what is in `folder`, and carries out `sync`. `None` when somebody was quicker.
    fn attempt(
        &self,
        folder: &str,
        limit: u64,
        sync: &SyncRequest,
        consul_session: Option<&ConsulSession>,
    ) -> impl Future<Output = Result<Option<SyncReply>, StoreError>> + Send;
}

/// Carries out a step: makes or renews its session, and attempts it until nobody else was quicker.
async fn sync(keeping: &impl Keeping, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
    let Inner {
        api,
        consul_sessions,
        prefix,
        rates,
    } = keeping.inner();
    let Rule::Permits { limit } = *rule else {
        return rates.sync(key, rule, sync).await;
    };
    let folder = folder(prefix, &key.of(rule.kind()));
    let started = consul_sessions.now();
    let consul_session = consul_sessions.of(api, key, sync).await?;
    let consul_session = consul_session.as_deref();
    let mut attempts: u32 = 0;
    let mut reply = loop {
        // The session is renewed beside, if it is time.
        let keep = async {
            match consul_session.filter(|_| !sync.end) {
                // It may be our own session that does not hold.
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
            // What it had locked is gone already, so that nobody waits for this; what it wrote may still come, until it is done.
            api.destroy(&consul_session.id).await?;
            consul_sessions.remove(key, sync.session);
        }
        _ => consul_sessions.remove(key, sync.session),
    }
    Ok(reply)
}

impl Inner {
    /// Nobody asks for this session any more.
    fn leave(&self, key: &Key, session: Session) {
        self.consul_sessions.remove(key, session);
        self.rates.leave(key, session);
    }
}

/// The folder of a limiter, whose key says of what kind it is, in which no other one's keys are: a slash in its name is none here.
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
