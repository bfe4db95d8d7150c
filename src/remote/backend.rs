//! The store as the clients see it: one atomic step at a time, as data.
//!
//! A client keeps a *session* at the store, and tells it in each [`SyncRequest`] all that has changed: what it asks for, what it no
//! longer asks for, and how much it has given back so far. Every number is cumulative or carries an id of the client's own
//! making, so that a step which is carried out twice, or whose answer is lost, does no harm: that is what makes it safe to try
//! again when a connection breaks.

use super::error::RemoteError;
use super::key::Key;
use crate::rate::Quota;
use std::fmt;
use std::time::Duration;

/// What is limited under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// Permits that come back, `limit` of them, in order of asking. The limit applies when nobody has used the key before;
    /// from then on the store's counts, which [`SyncRequest::limit`] changes.
    Permits {
        /// How many there are.
        limit: u64,
    },
    /// A token bucket.
    Rate {
        /// How it fills.
        quota: Quota,
    },
    /// At most so many in any span of this length, counted in [`SEGMENTS`](Self::SEGMENTS) segments: room comes back up to
    /// one segment late.
    Window {
        /// The most in any span.
        limit: u64,
        /// The length of the span.
        length: Duration,
    },
}

impl Rule {
    /// How many segments a window is counted in.
    pub const SEGMENTS: u64 = 64;
    /// A rate or window whose rule was changed is remembered for so long after it was last asked, also when nothing else is to
    /// be remembered of it: who was set up with another rule and comes late goes by the changed one.
    pub const REMEMBERED: Duration = Duration::from_secs(86_400);

    pub(super) const PERMITS: &str = "permits";
    pub(super) const RATE: &str = "rate";
    pub(super) const WINDOW: &str = "window";

    /// The kind of its limiters. Limiters of one key and different kinds share nothing.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Permits { .. } => Self::PERMITS,
            Self::Rate { .. } => Self::RATE,
            Self::Window { .. } => Self::WINDOW,
        }
    }
}

/// One client at one key, from its first step until it ends or expires: everything that it holds goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Whose. Drawn at random.
    pub client: u64,
    /// Its how-manieth session.
    pub number: u64,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.client, self.number)
    }
}

/// A wish for units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Counts upwards within a session. A number that the store has seen is not a new wish.
    pub id: u64,
    /// So many at least, all or none of them.
    pub need: u64,
    /// And up to so many, as far as nobody else waits for them.
    pub want: u64,
    /// Whether it waits in the queue when there are too few. A token bucket grants it for later then. A window
    /// does not grant it, and keeps a place for the session, until a wish of it that waits is granted, is withdrawn or the session is
    /// over: no other wish is granted what those before it need.
    pub queue: bool,
}

/// What a client tells the store, and asks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// Who.
    pub session: Session,
    /// Grows with each step of a session; what has been overtaken by a later one is ignored.
    pub seq: u64,
    /// The number of the last step that the store is known to have carried out; zero for none. A store that has only seen
    /// earlier ones has forgotten something of this session, which is lost then.
    pub acked: u64,
    /// The session may begin with this step. Otherwise an unknown session is one that has been lost.
    pub begin: bool,
    /// The session expires when the store has not heard of it for so long.
    pub ttl: Duration,
    /// How many units the session has given back, in all.
    pub returned: u64,
    /// For rates: how many units the session has used beyond those that it took, in all. They are taken into debt.
    pub charged: u64,
    /// What is wished for and may be new to the store, by rising ids.
    pub requests: Vec<Request>,
    /// The ids of wishes that are withdrawn. One that was granted meanwhile stays granted.
    pub withdrawn: Vec<u64>,
    /// The token of the last grant that the client has seen: those after it are told again.
    pub seen: u64,
    /// For permits: the limit is to be this from now on, for everybody.
    pub limit: Option<u64>,
    /// For permits: the token of the oldest grant of which the client holds something, as far as it has seen its grants.
    pub oldest: Option<u64>,
    /// For rates and windows: which edition of the rule the client goes by; zero for the one that it was set up with.
    pub edition: u64,
    /// For rates and windows: the rule is to be this from now on, for everybody, as a later edition; unless there is one already
    /// that is later than [`edition`](Self::edition).
    pub change: Option<Rule>,
    /// The client keeps units that it has no use for at the moment, and wants to be told when others wait.
    pub keeps: bool,
    /// The session ends: all that it holds and wishes goes.
    pub end: bool,
}

impl SyncRequest {
    /// The first step of a session, with which it begins and says nothing yet.
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

/// Units that a wish was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The wish.
    pub request: u64,
    /// How many: from its need to its want.
    pub units: u64,
    /// The fencing token: greater than that of every grant before it, at this key.
    pub token: u64,
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SyncReply {
    /// False when the store does not know the session: it has expired, or the store has lost it. Nothing was done then.
    pub alive: bool,
    /// The grants after [`SyncRequest::seen`], by rising tokens.
    pub grants: Vec<Grant>,
    /// Somebody else waits for units.
    pub others_wait: bool,
    /// When to look again, if nothing is heard before. With a grant of a rate: what was granted may be used from then on.
    pub again: Option<Duration>,
    /// For permits: nobody holds anything of a grant with a lower token any more. Zero when that is not known.
    pub floor: u64,
    /// For rates and windows: a later edition of the rule than the client goes by, and its number.
    pub rule: Option<(u64, Rule)>,
    /// For rates and windows: another session goes by another rule, and none was set for all.
    pub differs: bool,
    /// How things stand.
    pub usage: Usage,
    /// What is given out may be less than [`usage`](Self::usage) says, for stores that do not know it exactly.
    pub bound: bool,
    /// How long before the step the session was last renewed, for stores where steps do not renew it: the lease is shorter by
    /// so much.
    pub age: Duration,
}

/// How a key stands at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// The limit: of permits, of a window, or the burst of a rate.
    pub limit: u64,
    /// How many units are given out.
    pub in_use: u64,
    /// How many wishes wait.
    pub waiting: u64,
    /// How many sessions there are.
    pub sessions: u64,
}

/// What a session is told when there is news.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Notification {
    /// Nothing: a false alarm, or what has been told before.
    #[default]
    Nothing,
    /// Something that only a step finds.
    Sync,
    /// What a step would have been answered then, which need not be taken for it: every grant that no step of the session is
    /// known to have been told, and how things stand. [`again`](SyncReply::again) is left out. A grant may be told in both ways.
    SyncReply(SyncReply),
}

/// A place that keeps permits for many machines.
///
/// It promises, for each key and kind of [`Rule`] by themselves:
/// - a step is carried out whole, as if no other ran at the same time, by the store's own clock, or, where it has none to go by
///   and counts tokens, by no more time than has passed;
/// - carried out twice, it does what it would do once; one with a lower number than the last of its session does nothing;
/// - the units of sessions that have not expired never exceed the limit, unless the limit was lowered below them;
/// - wishes are granted in the order in which they came, in a window those of sessions that keep asking; a token is never given twice, and grows;
/// - a session that has ended or expired leaves nothing behind, and the last one takes the key with it.
///
/// [`Memory`](super::Memory) is the reference.
pub trait Backend: Send + Sync + 'static {
    /// Whether this store can do what a limiter is set up for, with sessions of this time to live. It is asked when the limiter
    /// is built, and before the limit is changed.
    ///
    /// # Errors
    /// [`RemoteError::Unsupported`], or another when only the number is out of range.
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        let _ = (rule, ttl);
        Ok(())
    }

    /// Carries out `sync` at `key`. Dropped, it may or may not have been carried out.
    ///
    /// # Errors
    /// [`StoreError`] when it is not known to have been carried out.
    fn sync(
        &self,
        key: &Key,
        rule: &Rule,
        sync: &SyncRequest,
    ) -> impl Future<Output = Result<SyncReply, StoreError>> + Send;

    /// Ends when a step of `session` at `key` might find something new: a grant, that others wait, or in a window where it has a
    /// place in line that the limit was raised. What has happened since the last call counts, and so does a false alarm; what is
    /// overlooked is found by the next step.
    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send;

    /// What the news was, asked once [`news`](Self::news) has ended: [`Notification::Look`] where a store does not say.
    fn notification(&self, key: &Key, session: Session) -> Notification {
        let _ = (key, session);
        Notification::Sync
    }

    /// Nobody asks for news of `session` any more, nor takes a step of it: its end was carried out, or is not told any more, or the
    /// store does not know it.
    fn leave(&self, key: &Key, session: Session) {
        let _ = (key, session);
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
}

/// Why it is not known what became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, or the connection broke.
    Unreachable {
        /// What the client library says.
        why: Box<str>,
    },
    /// No answer came in time.
    TimedOut {
        /// The time that it had.
        after: Duration,
    },
    /// The store answers, and others who change the same key were quicker all this time.
    Busy {
        /// The time that it was tried for.
        after: Duration,
    },
    /// The store refused the step: it does not allow it, or it holds something else under the key.
    Refused {
        /// What it says.
        why: Box<str>,
    },
    /// The answer makes no sense.
    Answer {
        /// What it was.
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
