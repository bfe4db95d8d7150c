//! Redis, and servers of the same protocol, as a store. One script for each kind of limiter; each sync is one call of it.
//!
//! | file | what it counts |
//! |---|---|
//! | `permits.lua` | sessions with their units, and one queue: a sorted set of requests by place |
//! | `bucket.lua` | a token bucket, GCRA in whole numbers |
//! | `window.lua` | a sliding window in segments |
//! | `rights.lua` | nothing: it checks the rights |

mod channels;
mod link;
mod options;
mod replication_ids;
mod script;

use crate::answer::{Answer, numbers};
use crate::connect::ConnectOptions;
use crate::subscriptions::{Subscription, Subscriptions};
use ::redis::{ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use channels::{Channel, Channels};
use link::Link;
use replication_ids::ReplicationIds;
use script::{Call, Script};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::RemoteError;
use tollgate::remote::model::micros;
use tollgate::remote::{
    Backend, KeyLeg, Notification, Rule, Session, Step, StepReply, StoreError, SyncReply, SyncRequest,
};

/// Limiters in Redis. A handle: clones are the same connection, which all limiters of a process can share.
///
/// Commands and messages share one connection. It is made when it is first needed, and restored when it breaks.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tollgate::remote::{Key, Remote};
/// # use tollgate_stores::Redis;
/// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::options("redis://127.0.0.1:6379").password("secret").connect()?;
/// let reports = Arc::new(Remote::permits(Key::new("reports")?, 20).spawn(redis)?);
/// let permit = reports.acquire_owned(1).await?;
/// assert!(!permit.is_lost());
/// # Ok(())
/// # }
/// ```
///
/// # What it needs
/// Redis 6.2 or later, or Valkey: one server, or with the feature `redis-cluster` a cluster. There each limiter lies on one
/// server, since all its keys carry one hash tag.
///
/// `maxmemory-policy noeviction`: a server with another policy, or that does not report it, is
/// [refused](tollgate::remote::StoreError::Refused) with the first sync at a new connection, unless that policy is [allowed by
/// name](ConnectOptions::allow_eviction).
///
/// It needs the rights below. They are checked on a key that is deleted at once, before the first sync; if one is missing that
/// sync is [refused](tollgate::remote::StoreError::Refused), and names it.
///
/// ```text
/// ACL SETUSER gate on >secret resetkeys ~tollgate:* resetchannels &tollgate:* -@all
///   +eval +evalsha +subscribe +publish +time +info +get +set +hmget +hget +hset +hdel +hgetall
///   +zadd +zrem +zrange +zrangebyscore +zscore +zcard +pexpire +del
/// ```
///
/// They are checked again on each new connection: it may be to another server.
///
/// # What is not promised
/// A server that answers that it has become a replica is not asked again: the connection is made anew, to the present server of
/// the address, or that the sentinels name.
///
/// Replication is asynchronous: a replica that takes over may not know the last grants. It knows that another server made the
/// grants in its memory. So does a server that was restarted from its saved state, or from nothing. Either grants no permits
/// until a time to live has passed, so that unknown leases have run out, and reports sessions as lost of which it has forgotten
/// something. The time to live is the longest that it knows of, or that of the asking process. Where others have a longer one,
/// set [`longest_ttl`](ConnectOptions::longest_ttl) in all processes.
///
/// A server cannot tell whether others have granted permits of a limiter that it does not know. It grants at once if it was
/// started a time to live ago, or if this process has known it for that long since it took over; otherwise after a time to
/// live. So a new process, at a server that once took over, waits that long for its first permits of unused limiters.
///
/// Tokens of rates that were granted last before another server took over are there again. Fencing tokens continue to grow, by
/// the server's clock.
///
/// A clock that is set back goes on here from where it was. Fencing tokens grow, also those of a limiter that was gone meanwhile:
/// the key `clock` under the prefix has the latest token of all limiters, until that is a week old. In a cluster each hash slot
/// with limiters has such a key. A clock that is set forward ends the leases that it jumps over. Their holders learn it with
/// their next renewal, a third of the time to live later at most.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    link: Link,
    prefix: Box<str>,
    timeout: Duration,
    channels: Arc<Channels>,
    subscriptions: Arc<Subscriptions>,
    replication_ids: ReplicationIds,
    longest_ttl: Duration,
    /// The eviction policy that is allowed beside `noeviction`.
    evicts: Option<Box<str>>,
    rights: Script,
    permits: Script,
    bucket: Script,
    window: Script,
    legs: Script,
}

impl Inner {
    /// Checks the server's eviction policy.
    fn allows(&self, policy: &str) -> Result<(), StoreError> {
        let safe = policy == "noeviction" || self.evicts.as_deref() == Some(policy);
        if safe {
            return Ok(());
        }
        let why = format!(
            "the server's maxmemory-policy is `{policy}`, and keys that it evicts are permits that it forgets: set \
             `noeviction`, or allow this one by ConnectOptions::allow_eviction"
        );
        Err(StoreError::Refused { why: why.into() })
    }
}

impl Redis {
    /// The Redis at `address`: `redis://user:password@host:port/database`, or `unix:///path`.
    pub fn options(address: impl Into<Box<str>>) -> ConnectOptions<Self> {
        ConnectOptions::new(
            address.into(),
            "tollgate:",
            Duration::from_millis(500),
            Default::default(),
        )
    }

    /// The servers of a cluster, of which it is enough to name some: addresses as for [`options`](Self::options), all with the
    /// same user, and the same kind of connection. The others are found, also later.
    ///
    /// Each limiter lies on one server, and moves with its hash slot and its state. While a slot is being moved its limiters
    /// may not answer; that has to be over before a lease is. A slot that is given to another server without its keys is as new
    /// there. For a replica that takes over from a dead or silent server, see [`Redis`]. Messages for waiters go through all
    /// servers; this process has one channel for each slot with a limiter. Beside the rights that one server needs these are
    /// needed, on each: `+cluster|slots +ping +asking`.
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn cluster<A: Into<Box<str>>>(addresses: impl IntoIterator<Item = A>) -> ConnectOptions<Self> {
        let mut options = Self::options("");
        options.own.cluster = Some(addresses.into_iter().map(Into::into).collect());
        options
    }

    /// The Redis that sentinels call `name`: the server that they name, and after a fail-over its successor. The addresses are those
    /// of the sentinels, as for [`options`](Self::options), with a user and a password of theirs if they need them; it is enough to
    /// name some. The [user](ConnectOptions::user) and [password](ConnectOptions::password) are the server's, and so is
    /// the database of the first address. With `rediss://` connections to sentinels and servers are encrypted.
    ///
    /// They are asked for the first connection, and again when the server does not answer, or answers that it is a replica. For a
    /// replica that takes over, see [`Redis`]. `min-replicas-to-write 1` at the servers keeps one that is cut off from the others from
    /// granting permits that its successor grants too.
    ///
    /// ```no_run
    /// # use tollgate_stores::Redis;
    /// # async fn connected() -> Result<(), tollgate::remote::RemoteError> {
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let redis = Redis::sentinel("limits", sentinels).user("gate").password("secret").connect()?;
    /// # drop(redis);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis-sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-sentinel")))]
    pub fn sentinel<A: Into<Box<str>>>(
        name: impl Into<Box<str>>,
        addresses: impl IntoIterator<Item = A>,
    ) -> ConnectOptions<Self> {
        let mut options = Self::options("");
        options.own.sentinels = Some(options::Sentinels {
            name: name.into(),
            addresses: addresses.into_iter().map(Into::into).collect(),
        });
        options
    }

    fn new(
        link: impl FnOnce(Box<dyn Fn(&PushInfo) + Send + Sync>) -> Result<Link, RemoteError>,
        options: &ConnectOptions<Self>,
    ) -> Result<Self, RemoteError> {
        let (subscriptions, channels) = (
            Arc::<Subscriptions>::default(),
            Arc::new(Channels::new(&options.prefix)),
        );
        let (hearing, tried) = (Arc::clone(&subscriptions), Arc::clone(&channels));
        let hear = move |push: &PushInfo| match push.kind {
            PushKind::Message => {
                if let Some(Value::BulkString(said)) = push.data.get(1) {
                    hearing.hear(&String::from_utf8_lossy(said));
                }
            }
            PushKind::Subscribe => {
                if let Some(Value::BulkString(channel)) = push.data.first() {
                    hearing.missed_at(channel);
                }
            }
            PushKind::Disconnection => {
                tried.begin_anew();
                hearing.missed_all();
            }
            _ => {}
        };
        Ok(Self(Arc::new(Inner {
            link: link(Box::new(hear))?,
            prefix: options.prefix.clone(),
            timeout: options.timeout,
            channels,
            subscriptions,
            replication_ids: ReplicationIds::default(),
            longest_ttl: options.own.longest_ttl,
            evicts: options.own.evicts.clone(),
            rights: Script::new(include_str!("rights.lua")),
            permits: Script::new(include_str!("permits.lua")),
            bucket: Script::new(include_str!("bucket.lua")),
            window: Script::new(include_str!("window.lua")),
            legs: Script::new(include_str!("legs.lua")),
        })))
    }

    /// The name of one of the keys of a limiter of this kind. The text in braces decides where a cluster keeps it.
    fn key(&self, key: &Key, kind: &str, part: &str) -> String {
        let rest = &key.as_str()[key.tag().len()..];
        format!("{}{{{}}}{rest}:{kind}:{part}", self.0.prefix, key.tag())
    }

    /// The key of the server's history. In a cluster it could not lie beside `key`.
    fn history(&self, key: &Key) -> Option<String> {
        let alone = self.0.link.slot(key).is_none();
        alone.then(|| format!("{}history", self.0.prefix))
    }

    fn subscription(&self, key: &Key, session: Session) -> Arc<Subscription> {
        self.0
            .subscriptions
            .open(self.name(key, session), &self.channel(key).channel)
    }

    /// The name of `session` in messages.
    fn name(&self, key: &Key, session: Session) -> String {
        format!("{}{{{key}}} {session}", self.0.prefix)
    }

    async fn call(&self, call: &Call) -> Result<Answer, StoreError> {
        let number = self.0.link.number();
        let answer: Result<Vec<String>, _> = self.0.link.invoke(call).await;
        answer.map(Answer).map_err(|error| self.failed(&error, number))
    }

    /// Converts an error on that connection. A connection to a live server that does not decide any more is given up:
    /// connecting anew finds its successor.
    fn failed(&self, error: &RedisError, number: u64) -> StoreError {
        if error.is_timeout() {
            return StoreError::TimedOut { after: self.0.timeout };
        }
        if is_replica(error) {
            self.0.link.give_up(number);
        }
        let why = error.to_string().into();
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::TryAgain) => StoreError::Busy { after: Duration::ZERO },
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreError::Answer { given: why },
            _ if is_final(error) => StoreError::Refused { why },
            _ => StoreError::Unreachable { why },
        }
    }

    async fn permits(&self, key: &Key, rule: &Rule, limit: u64, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let inner = &*self.0;
        let channel = self.ready(key).await?;
        if sync.begin {
            inner.subscriptions.open(self.name(key, sync.session), &channel.channel);
        }
        let parts = ["state", "dues", "queue", "oldest"];
        let parts = parts.map(|part| self.key(key, rule.kind(), part));
        let clock = channel.clock.to_string();
        let mut call = inner
            .permits
            .on(parts.into_iter().chain([clock]).chain(self.history(key)));
        call.arg(limit)
            .arg(&*channel.channel)
            .arg(sync.session.to_string())
            .arg(sync.seq)
            .arg(u8::from(sync.begin))
            .arg(micros(sync.ttl))
            .arg(sync.returned)
            .arg(sync.seen)
            .arg(sync.limit.map_or(String::new(), |limit| limit.to_string()))
            .arg(u8::from(sync.keeps))
            .arg(u8::from(sync.end))
            .arg(sync.acked)
            .arg(sync.oldest.map_or(String::new(), |token| token.to_string()))
            .arg(sync.requests.len())
            .arg(inner.replication_ids.known())
            .arg(micros(inner.longest_ttl))
            .arg(u8::from(inner.evicts.is_some()));
        for request in &sync.requests {
            call.arg(request.id)
                .arg(request.need)
                .arg(request.want)
                .arg(u8::from(request.queue));
        }
        for id in &sync.withdrawn {
            call.arg(*id);
        }
        let answer = self.call(&call).await?;
        if let Some(replication_id) = answer.word(8).ok().filter(|id| *id != "-") {
            inner.replication_ids.note(replication_id);
        }
        answer.of_permits()
    }

    fn channel(&self, key: &Key) -> Arc<Channel> {
        self.0.channels.of(key, self.0.link.slot(key))
    }

    /// Subscribes and checks the rights, once for all limiters of a channel, before there is a notification, and before a
    /// missing right leaves a sync half done.
    async fn ready(&self, key: &Key) -> Result<Arc<Channel>, StoreError> {
        let (inner, channel) = (&*self.0, self.channel(key));
        let (tried, number) = (channel.tried(), inner.link.number());
        let ready = tried.get_or_try_init(|| async {
            let mut call = inner.rights.on([channel.key.to_string()]);
            call.arg(&*channel.channel);
            let failed = |error: RedisError| self.failed(&error, number);
            let policy: String = inner.link.invoke(&call).await.map_err(failed)?;
            inner.allows(&policy)?;
            inner.link.subscribe(&channel.channel).await.map_err(failed)
        });
        ready.await?;
        Ok(channel)
    }

    async fn rate(&self, key: &Key, script: &Script, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let channel = self.ready(key).await?;
        if matches!(rule, Rule::Window { .. }) && sync.requests.iter().any(|request| request.queue) {
            self.0
                .subscriptions
                .open(self.name(key, sync.session), &channel.channel);
        }
        let taker = format!("taker:{}", sync.session);
        let mut call = script.on([
            self.key(key, rule.kind(), "state"),
            self.key(key, rule.kind(), &taker),
            channel.clock.to_string(),
        ]);
        for number in numbers(rule)? {
            call.arg(number);
        }
        let request = sync.requests.first();
        call.arg(sync.session.to_string())
            .arg(sync.seq)
            .arg(u8::from(sync.begin))
            .arg(micros(sync.ttl))
            .arg(sync.charged)
            .arg(sync.seen)
            .arg(u8::from(sync.end))
            .arg(request.map_or(0, |request| request.id))
            .arg(request.map_or(0, |request| request.need))
            .arg(request.map_or(0, |request| request.want))
            .arg(request.map_or(0, |request| u8::from(request.queue)))
            .arg(sync.edition);
        // A window keeps its length.
        let fits = |change: &&Rule| match (rule, change) {
            (Rule::Window { length, .. }, Rule::Window { length: other, .. }) => length == other,
            _ => true,
        };
        match sync.change.as_ref().filter(fits) {
            None => call.arg("").arg("").arg(""),
            Some(change) => {
                let [one, two, three] = numbers(change)?;
                call.arg(one).arg(two).arg(three)
            }
        };
        call.arg(Rule::REMEMBERED.as_millis().to_string())
            .arg(&*channel.channel);
        for id in &sync.withdrawn {
            call.arg(*id);
        }
        self.call(&call).await?.of_rates(rule)
    }
}

impl Backend for Redis {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        match *rule {
            Rule::Permits { limit } => self.permits(key, rule, limit, sync).await,
            Rule::Window { .. } => self.rate(key, &self.0.window, rule, sync).await,
            _ => self.rate(key, &self.0.bucket, rule, sync).await,
        }
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.subscription(key, session).notified().await;
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        self.subscription(key, session).take()
    }

    fn leave(&self, key: &Key, session: Session) {
        self.0.subscriptions.close(&self.name(key, session));
    }

    fn supports_steps(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    /// In a cluster the rights are not checked before: a check for each of many slots would take a channel for each.
    async fn step(&self, key: &Key, legs: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
        let inner = &*self.0;
        let lease = step
            .lease
            .filter(|_| legs.iter().any(|leg| matches!(leg.rule, Rule::Permits { .. })));
        let slot = inner.link.slot(key);
        let mut others: Vec<&Key> = legs.iter().filter_map(|leg| leg.key.as_ref()).collect();
        others.sort_unstable();
        others.dedup();
        if slot.is_some() && others.iter().any(|other| inner.link.slot(other) != slot) {
            let why = "the keys of one step lie in different hash slots of the cluster: they need one tag".into();
            return Err(StoreError::Refused { why });
        }
        if slot.is_none() || lease.is_some() {
            self.ready(key).await?;
        }
        let answer = format!("answer:{:016x}", step.client);
        let keys = [self.key(key, "legs", "state"), self.key(key, "legs", &answer)];
        let history = lease.and_then(|_| self.history(key));
        let states = others.iter().map(|other| self.key(other, "legs", "state"));
        let mut call = inner.legs.on(keys.into_iter().chain(states).chain(history));
        call.arg(step.seq)
            .arg(micros(step.remember).div_ceil(1_000))
            .arg(legs.len())
            .arg(step.corrections.len())
            .arg(step.takes.len())
            .arg(u8::from(step.grant.is_some()))
            .arg(others.len())
            .arg(step.reserved.len())
            .arg(step.reserve_for.map_or(0, micros));
        for leg in legs {
            call.arg(&*leg.name);
            if let Rule::Permits { limit } = leg.rule {
                call.arg(limit).arg(0).arg("p");
                continue;
            }
            let [one, two, three] = numbers(&leg.rule)?;
            call.arg(one).arg(two);
            match leg.rule {
                Rule::Window { .. } => call.arg("w"),
                _ => call.arg(three),
            };
        }
        for reserved in &step.reserved {
            call.arg(reserved.at).arg(reserved.until);
            for leg in 0..legs.len() {
                call.arg(reserved.before[leg])
                    .arg(reserved.after[leg])
                    .arg(reserved.used[leg]);
            }
        }
        for correction in &step.corrections {
            call.arg(correction.at);
            for (charged, actual) in correction.charged.iter().zip(&correction.actual).take(legs.len()) {
                call.arg(*charged).arg(*actual);
            }
        }
        for units in step.takes.iter().chain(&step.grant) {
            units.iter().take(legs.len()).for_each(|units| _ = call.arg(*units));
        }
        for leg in legs.iter().filter(|_| !others.is_empty()) {
            let number = leg.key.as_ref().and_then(|key| others.binary_search(&key).ok());
            call.arg(number.map_or(0, |number| number + 1));
        }
        if let Some(lease) = &lease {
            let (channel, place) = (self.channel(key).channel.clone(), Session::of_place(step.client));
            if lease.waiting < step.takes.len() {
                inner.subscriptions.open(self.name(key, place), &channel);
            }
            call.arg(micros(lease.ttl))
                .arg(format!("{:016x}", step.client))
                .arg(lease.waiting)
                .arg(&*channel)
                .arg(self.name(key, place))
                .arg(inner.replication_ids.known())
                .arg(micros(inner.longest_ttl))
                .arg(u8::from(inner.evicts.is_some()));
            lease.held.iter().take(legs.len()).for_each(|held| _ = call.arg(*held));
        }
        let answer = self.call(&call).await?;
        if lease.is_some()
            && let Ok(replication_id) = answer.word(2 + 2 * step.takes.len())
            && replication_id != "-"
        {
            inner.replication_ids.note(replication_id);
        }
        answer.of_step(legs.len(), step, lease.is_some())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}

/// Whether the server refuses until its set-up is changed, or that of this process. All else passes by itself: the server is starting,
/// runs a long script, has too few replicas, or no memory or disk left, or the connection broke.
fn is_final(error: &RedisError) -> bool {
    /// The states of a server that pass. Before Redis 7 the text of a script's error names them.
    const PASSING: [&str; 9] = [
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    ];
    /// The last two are those of the scripts here.
    const FINAL: [&str; 8] = [
        "CROSSSLOT",
        "NOAUTH",
        "NOPERM",
        "NOPROTO",
        "WRONGPASS",
        "WRONGTYPE",
        "KIND",
        "WINDOW",
    ];
    if matches!(
        error.kind(),
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported
    ) {
        return true;
    }
    match error.code() {
        Some("ERR") => {
            let text = error.to_string();
            let is_full = text.contains("max number of clients");
            let mut words = text.split(|c: char| !c.is_ascii_uppercase());
            !is_full && !words.any(|word| PASSING.contains(&word))
        }
        Some(code) => FINAL.contains(&code),
        None => false,
    }
}

/// Whether a server says that it takes no writes, since it follows another one. Before Redis 7 this is part of a script's
/// error.
fn is_replica(error: &RedisError) -> bool {
    let says_so = || error.to_string().contains("-READONLY ");
    let ErrorKind::Server(kind) = error.kind() else {
        return false;
    };
    matches!(kind, ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) || says_so()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a server that answers with this line.
    fn error(line: &str) -> RedisError {
        let answer = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        answer.extract_error().unwrap_err()
    }

    #[test]
    fn states_that_pass_by_themselves_are_not_final() {
        for line in [
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "CLUSTERDOWN The cluster is down",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "NOREPLICAS Not enough good replicas to write.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "ERR max number of clients reached",
            "ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed",
            "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -MISCONF Redis is configured",
            "SOMETHINGNEW that no version has yet",
        ] {
            assert!(!is_final(&error(line)), "{line}");
        }
    }

    #[test]
    fn a_set_up_that_the_server_refuses_is_final() {
        for line in [
            "NOAUTH Authentication required.",
            "NOPERM User gate has no permissions to run the 'eval' command",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "KIND tollgate:{a}:rate:state is another kind of limiter",
            "WINDOW another length is in use under this key",
            "ERR unknown command 'EVALSHA'",
            "ERR ACL failure in script: User gate has no permissions to run the 'set' command",
            "ERR Error running script (call to f_1): @user_script:9: WRONGTYPE Operation against a key",
        ] {
            assert!(is_final(&error(line)), "{line}");
        }
    }
}
