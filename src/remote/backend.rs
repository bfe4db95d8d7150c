//! The interface to a store: one atomic sync at a time, as data.
//!
//! A client keeps a *session* at the store. Each [`SyncRequest`] reports all changes: new requests, withdrawn ones, and the
//! units returned so far. Every number is cumulative or carries an id of the client's own making. So a sync that is carried out
//! twice, or whose answer is lost, does no harm, and may be retried when a connection breaks.

use super::error::RemoteError;
use super::key::Key;
use super::step::{KeyLeg, Step, StepReply};
use crate::rate::Quota;
use std::fmt;
use std::time::Duration;

/// The rule of the limit under a key.
///
/// ```
/// # use tollgate::Quota;
/// # use tollgate::remote::Rule;
/// let rules = [Rule::Permits { limit: 3 }, Rule::Rate { quota: Quota::per_second(10) }];
/// assert_eq!(rules.map(|rule| rule.kind()), [Rule::PERMITS, Rule::RATE]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// Permits that come back, `limit` of them, in order of requests. The limit applies if the key was not used before; from
    /// then on the store's limit counts, which [`SyncRequest::limit`] changes.
    Permits {
        /// The number of permits.
        limit: u64,
    },
    /// A token bucket.
    Rate {
        /// How it fills.
        quota: Quota,
    },
    /// At most `limit` units in any span of this length, counted in [`SEGMENTS`](Self::SEGMENTS) segments: they come back up to
    /// one segment late.
    Window {
        /// The most in any span.
        limit: u64,
        /// The length of the span.
        length: Duration,
    },
}

impl Rule {
    /// The number of segments of a window.
    pub const SEGMENTS: u64 = 64;
    /// How long a changed rule of a rate or window is remembered after the last sync, also when nothing else has to be. A late
    /// process that was set up with another rule uses the changed one.
    pub const REMEMBERED: Duration = Duration::from_secs(86_400);

    /// The [kind](Self::kind) of permits.
    pub const PERMITS: &str = "permits";
    /// The kind of a rate.
    pub const RATE: &str = "rate";
    /// The kind of a window.
    pub const WINDOW: &str = "window";

    /// The kind of the limiter. Limiters of one key and different kinds share nothing: see [`Key::of_kind`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Permits { .. } => Self::PERMITS,
            Self::Rate { .. } => Self::RATE,
            Self::Window { .. } => Self::WINDOW,
        }
    }
}

/// One client at one key, from its first sync until it ends or expires: its units go with it.
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Request, Session, SyncRequest};
/// # use std::time::Duration;
/// let (mut permits, session) = (Permits::new(3, 0), Session { client: 7, number: 0 });
/// let mut sync = SyncRequest::first(session, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 1, want: 1, queue: false });
/// assert_eq!(permits.sync(1_000, &sync).reply.usage.in_use, 1);
/// permits.end(session);
/// assert!(permits.state().sessions.is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// The client, a random number.
    pub client: u64,
    /// Session number within this client.
    pub number: u64,
}

impl Session {
    /// The name under which a client with a [place](super::KeyLease::waiting) at a key is notified. It has no other session of that number.
    pub fn of_place(client: u64) -> Self {
        Self { client, number: 0 }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.client, self.number)
    }
}

/// A request for units.
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Request, Session, SyncRequest};
/// # use std::time::Duration;
/// let mut sync = SyncRequest::first(Session { client: 7, number: 0 }, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 1, want: 3, queue: false });
/// sync.requests.push(Request { id: 2, need: 2, want: 2, queue: true });
/// let reply = Permits::new(3, 0).sync(1_000, &sync).reply;
/// assert_eq!((reply.grants[0].units, reply.usage.waiting), (3, 1), "the second waits");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Rises within a session. A number that the store has seen is not a new request.
    pub id: u64,
    /// The least number of units; fewer are not granted.
    pub need: u64,
    /// The most units, as far as no other session waits for them.
    pub want: u64,
    /// Whether it waits in the queue when there are too few. A token bucket then grants it for later. A window does not grant
    /// it, and keeps a place for the session, until a waiting request of the session is granted or withdrawn, or the session
    /// ends. No other request gets units that earlier places need.
    pub queue: bool,
}

/// The report and the requests of a client.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Backend, Key, Memory, Request, Rule, Session, SyncRequest};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let store = Memory::new(&clock);
/// let mut sync = SyncRequest::first(Session { client: 7, number: 0 }, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 1, want: 1, queue: false });
/// let (key, rule) = (Key::new("reports")?, Rule::Permits { limit: 2 });
/// let once = clock.run(store.sync(&key, &rule, &sync))?;
/// let again = clock.run(store.sync(&key, &rule, &sync))?;
/// assert_eq!((once.usage.in_use, again.usage.in_use), (1, 1), "a repeated sync acts once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The session.
    pub session: Session,
    /// Grows with each sync of a session; one that was overtaken by a later one is ignored.
    pub seq: u64,
    /// The number of the last sync that the store is known to have carried out; zero for none. A store that has only seen
    /// earlier ones has forgotten a part of this session, which is lost then.
    pub acked: u64,
    /// The session may begin with this sync. Otherwise an unknown session is a lost one.
    pub begin: bool,
    /// The session expires when the store has not heard of it for this long.
    pub ttl: Duration,
    /// Units that the session has returned, in total.
    pub returned: u64,
    /// For rates: units that the session has used beyond those that it took, in total. They become debt.
    pub charged: u64,
    /// Requests that may be new to the store, by rising ids.
    pub requests: Vec<Request>,
    /// The ids of withdrawn requests. One that was granted meanwhile stays granted.
    pub withdrawn: Vec<u64>,
    /// The token of the last grant that the client has seen: later ones are repeated.
    pub seen: u64,
    /// For permits: the new limit, for all processes.
    pub limit: Option<u64>,
    /// For permits: the token of the oldest grant of which the client holds units, as far as it has seen its grants.
    pub oldest: Option<u64>,
    /// For rates and windows: the edition of the rule that the client uses; zero for the one that it was set up with.
    pub edition: u64,
    /// For rates and windows: the new rule, for all processes, as a later edition. It is ignored if the store has an edition
    /// later than [`edition`](Self::edition).
    pub change: Option<Rule>,
    /// The client keeps units without a use for them at the moment, and wants a notification when others wait.
    pub keeps: bool,
    /// The session ends: its units and requests go.
    pub end: bool,
}

impl SyncRequest {
    /// The first sync of a session, which begins it and reports nothing yet.
    pub fn first(session: Session, ttl: Duration) -> Self {
        Self {
            session,
            seq: 1,
            acked: 0,
            begin: true,
            ttl,
            returned: 0,
            charged: 0,
            requests: Vec::new(),
            withdrawn: Vec::new(),
            seen: 0,
            limit: None,
            oldest: None,
            edition: 0,
            change: None,
            keeps: false,
            end: false,
        }
    }
}

/// Units granted to a request.
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Request, Session, SyncRequest};
/// # use std::time::Duration;
/// let mut sync = SyncRequest::first(Session { client: 7, number: 0 }, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 1, want: 5, queue: false });
/// let grant = Permits::new(3, 0).sync(1_000, &sync).reply.grants[0];
/// assert_eq!((grant.request, grant.units), (1, 3), "as many as are there");
/// assert!(grant.token >= 1_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The id of the request.
    pub request: u64,
    /// The number of units: from its need to its want.
    pub units: u64,
    /// The fencing token: greater than that of every grant before it, at this key.
    pub token: u64,
}

/// The reply of the store.
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Session, SyncRequest};
/// # use std::time::Duration;
/// let session = Session { client: 7, number: 0 };
/// let mut later = SyncRequest::first(session, Duration::from_secs(10));
/// later.begin = false;
/// let reply = Permits::new(3, 0).sync(1_000, &later).reply;
/// assert!(!reply.alive, "the store does not know the session: it is lost");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SyncReply {
    /// False when the store does not know the session, which has expired or was lost. Nothing was done then.
    pub alive: bool,
    /// The grants after [`SyncRequest::seen`], by rising tokens.
    pub grants: Vec<Grant>,
    /// Another session waits for units.
    pub others_wait: bool,
    /// When to sync again, unless a notification comes before. With a grant of a rate: it may be used from then on.
    pub again: Option<Duration>,
    /// For permits: no units of a grant with a lower token are held any more. Zero when that is not known.
    pub floor: u64,
    /// For rates and windows: a later edition of the rule than the client uses, and its number.
    pub rule: Option<(u64, Rule)>,
    /// For rates and windows: another session uses another rule, and none was set for all.
    pub differs: bool,
    /// The usage of the key.
    pub usage: Usage,
    /// How long before the sync the session was last renewed, for stores where syncs do not renew it: the lease is shorter by
    /// that.
    pub age: Duration,
}

/// The usage of a key at the store.
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Session, SyncRequest};
/// # use std::time::Duration;
/// let sync = SyncRequest::first(Session { client: 7, number: 0 }, Duration::from_secs(10));
/// let usage = Permits::new(3, 0).sync(1_000, &sync).reply.usage;
/// assert_eq!((usage.limit, usage.in_use, usage.sessions), (3, 0, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// The limit: of permits, of a window, or the burst of a rate.
    pub limit: u64,
    /// Granted units.
    pub in_use: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Sessions.
    pub sessions: u64,
}

/// A notification for a session.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Backend, Key, Memory, Notification, Session};
/// let store = Memory::new(&ManualClock::new());
/// let stranger = Session { client: 7, number: 0 };
/// assert!(matches!(store.notification(&Key::new("reports")?, stranger), Notification::Sync | Notification::Nothing));
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Notification {
    /// None: a false alarm, or a repetition.
    #[default]
    Nothing,
    /// A change that only a sync reveals.
    Sync,
    /// The reply that a sync would have got. It has every grant that no sync of the session is known to have reported, and the
    /// usage. [`again`](SyncReply::again) is left out. A sync may report the same grant once more.
    Reply(SyncReply),
}

/// A store that keeps permits for many machines.
///
/// It promises, for each key and kind of [`Rule`] by themselves:
/// - A sync is atomic, by the store's own clock.
/// - A repeated sync acts once. One with a lower number than the last of its session does nothing.
/// - The units of live sessions never exceed the limit, unless the limit was lowered below them.
/// - Requests are granted in order of arrival; in a window, those of sessions that keep asking. A token is never given twice,
///   and grows.
/// - A session that has ended or expired leaves nothing behind, and the last one takes the key with it.
///
/// [`Memory`](super::Memory) is the reference.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Backend, Key, Memory, Remote, Rule, Session, StoreError, SyncReply, SyncRequest};
/// # use std::sync::Arc;
/// # use std::sync::atomic::{AtomicU32, Ordering};
/// /// A store that counts its syncs.
/// struct Counted { store: Memory, syncs: AtomicU32 }
///
/// impl Backend for Counted {
///     async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
///         self.syncs.fetch_add(1, Ordering::Relaxed);
///         self.store.sync(key, rule, sync).await
///     }
///     async fn notified(&self, key: &Key, session: Session) {
///         self.store.notified(key, session).await;
///     }
/// }
///
/// let clock = ManualClock::new();
/// let store = Arc::new(Counted { store: Memory::new(&clock), syncs: AtomicU32::new(0) });
/// let reports = Remote::permits(Key::new("reports")?, 1).on(&clock).in_place(Arc::clone(&store))?;
/// clock.run(async { assert!(reports.acquire(1).await.is_ok()) });
/// assert!(store.syncs.load(Ordering::Relaxed) > 0);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Checks that this store supports the rule, with sessions of this time to live. It is called when the limiter is built,
    /// and before the limit is changed.
    ///
    /// # Errors
    /// [`RemoteError::Unsupported`], or another when only the number is out of range. A rate that is unsupported where permits
    /// are supported is [leased](super::RemoteBuilder::capacity).
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        let _ = (rule, ttl);
        Ok(())
    }

    /// Carries out `sync` at `key`. If the future is dropped, it may or may not have been carried out.
    ///
    /// # Errors
    /// [`StoreError`] when it is not known to have been carried out.
    fn sync(
        &self,
        key: &Key,
        rule: &Rule,
        sync: &SyncRequest,
    ) -> impl Future<Output = Result<SyncReply, StoreError>> + Send;

    /// Ends when a sync of `session` at `key` might find something new: a grant, waiters of other sessions, or, for a place in
    /// the queue of a window, a raised limit. It also ends for events since the last call, and for false alarms. The next sync
    /// finds overlooked events.
    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send;

    /// The notification, read once [`notified`](Self::notified) has ended: [`Notification::Sync`] where a store does not keep
    /// it.
    fn notification(&self, key: &Key, session: Session) -> Notification {
        let _ = (key, session);
        Notification::Sync
    }

    /// Forgets `session`: no more notifications are awaited and no syncs follow. The session has ended, was abandoned, or is
    /// unknown to the store.
    fn leave(&self, key: &Key, session: Session) {
        let _ = (key, session);
    }

    /// Checks that this store carries out [steps](Self::step). It is called when a limiter of many keys is built.
    ///
    /// # Errors
    /// [`RemoteError::Unsupported`], unless a store implements it.
    fn supports_steps(&self) -> Result<(), RemoteError> {
        Err(RemoteError::Unsupported {
            what: "limits of many keys",
            store: "this store",
        })
    }

    /// Carries out `step` at `key`, whose legs are `legs`: atomically, by the store's own clock. A repeated step acts once. The
    /// key goes by itself once all that was taken has come back. If the future is dropped, the step may or may not have been
    /// carried out.
    ///
    /// A client with a place is [notified](Self::notified) as [`Session::of_place`] when a step finds that its permits are there, once, and
    /// repeats its ask then.
    ///
    /// [`KeyLegs`](super::model::KeyLegs) is the reference.
    ///
    /// # Errors
    /// [`StoreError`] when it is not known to have been carried out.
    fn step(
        &self,
        key: &Key,
        legs: &[KeyLeg],
        step: &Step,
    ) -> impl Future<Output = Result<StepReply, StoreError>> + Send {
        let _ = (key, legs, step);
        let why = "it does not carry out steps".into();
        std::future::ready(Err(StoreError::Refused { why }))
    }
}

impl<B: Backend> Backend for std::sync::Arc<B> {
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        (**self).supports(rule, ttl)
    }

    fn sync(
        &self,
        key: &Key,
        rule: &Rule,
        sync: &SyncRequest,
    ) -> impl Future<Output = Result<SyncReply, StoreError>> + Send {
        (**self).sync(key, rule, sync)
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        (**self).notified(key, session)
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        (**self).notification(key, session)
    }

    fn leave(&self, key: &Key, session: Session) {
        (**self).leave(key, session);
    }

    fn supports_steps(&self) -> Result<(), RemoteError> {
        (**self).supports_steps()
    }

    fn step(
        &self,
        key: &Key,
        legs: &[KeyLeg],
        step: &Step,
    ) -> impl Future<Output = Result<StepReply, StoreError>> + Send {
        (**self).step(key, legs, step)
    }
}

/// Why the outcome of a sync is unknown.
///
/// ```
/// # use tollgate::remote::StoreError;
/// # use std::time::Duration;
/// let error = StoreError::TimedOut { after: Duration::from_secs(2) };
/// assert!(error.to_string().contains("2s"), "{error}");
/// assert_ne!(error, StoreError::Busy { after: Duration::from_secs(2) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, the connection broke, or the store says that it cannot serve for now: it is starting, has no memory or
    /// disk left, or follows another server.
    Unreachable {
        /// The error of the client library, or of the store.
        why: Box<str>,
    },
    /// No answer came in time.
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// The store answers, but other writers of the same key were quicker all the time.
    Busy {
        /// How long it was tried.
        after: Duration,
    },
    /// The store refuses, and will until its set-up is changed: a right is missing, or there is something else under the key. Requests are refused as
    /// [`Misconfigured`](crate::Reason::Misconfigured), whatever was chosen for a store that is [away](super::OnUnavailable).
    Refused {
        /// The error of the store.
        why: Box<str>,
    },
    /// The answer is malformed.
    Answer {
        /// The answer.
        given: Box<str>,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { why } => write!(f, "the store cannot be reached: {why}"),
            Self::TimedOut { after } => write!(f, "the store did not answer within {after:?}"),
            Self::Busy { after } => write!(f, "others who change the same key were quicker for {after:?}"),
            Self::Refused { why } => write!(f, "the store refused: {why}"),
            Self::Answer { given } => write!(f, "the store gave an answer that makes no sense: {given}"),
        }
    }
}

impl std::error::Error for StoreError {}
