//! The sessions of this process: what Consul calls them, when they were last renewed, and who looks out for news of them.

use super::agent::Agent;
use crate::remote::backend::{Session, Step, StoreError};
use crate::remote::key::Key;
use crate::remote::random;
use crate::rng::nth_fraction;
use crate::time::{Clock, Instant};
use futures::FutureExt;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

/// One session of ours.
#[derive(Debug)]
pub(super) struct Seat {
    /// What Consul calls it.
    pub(super) id: Box<str>,
    clock: Clock,
    /// When the last renewal was sent that was answered.
    renewed: Mutex<Instant>,
    /// Consul has said that there is no such session.
    lost: AtomicBool,
    /// Somebody was quicker the last time.
    overtaken: AtomicBool,
    pub(super) ear: Arc<Notify>,
    watch: Mutex<Option<AbortHandle>>,
}

impl Seat {
    /// How long it had lived on its last renewal at `instant`.
    pub(super) fn age_at(&self, instant: Instant) -> Duration {
        self.clock.between(*self.renewed.lock(), instant)
    }

    /// Renews it if that was long ago. A session lives for `ttl` after a renewal; later ones find it renewed for three quarters
    /// of it at least.
    pub(super) async fn keep(&self, agent: &Agent, ttl: Duration) -> Result<(), StoreError> {
        if self.age_at(self.clock.now()) >= ttl / 4 {
            self.renew(agent).await
        } else {
            Ok(())
        }
    }

    pub(super) async fn renew(&self, agent: &Agent) -> Result<(), StoreError> {
        let sent = self.clock.now();
        if agent.renew(&self.id).await? {
            let mut renewed = self.renewed.lock();
            *renewed = sent.max(*renewed);
        } else {
            // Relaxed: it is only ever set, and says nothing of other memory.
            self.lost.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn is_lost(&self) -> bool {
        // Relaxed: see `renew`.
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn set_overtaken(&self, overtaken: bool) {
        // Relaxed: it only says which way is tried.
        self.overtaken.store(overtaken, Ordering::Relaxed);
    }

    pub(super) fn is_overtaken(&self) -> bool {
        // Relaxed: see `set_overtaken`.
        self.overtaken.load(Ordering::Relaxed)
    }

    /// Looks out for changes of `key` since the write `index`, or under it, from now on, unless somebody does already.
    pub(super) fn watch(&self, agent: &Agent, key: String, recurse: bool, index: u64, ttl: Duration) {
        let mut watch = self.watch.lock();
        if watch.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let task = tokio::spawn(look_out(agent.clone(), key, recurse, index, ttl, Arc::clone(&self.ear)));
        *watch = Some(task.abort_handle());
    }

    /// Nothing is waited for any more: what happens is no news, nor what has happened.
    pub(super) fn unwatch(&self) {
        let watch = self.watch.lock().take();
        if let Some(task) = watch {
            task.abort();
            let _ = self.ear.notified().now_or_never();
        }
    }
}

/// A session of Consul's. When nobody waits for it any more, it is ended as soon as it is known: it would live for two lives.
async fn made(agent: &Agent, ttl: Duration) -> Result<String, StoreError> {
    let (told, id) = oneshot::channel();
    let agent = agent.clone();
    tokio::spawn(async move {
        if let Err(Ok(id)) = told.send(agent.create(ttl).await) {
            // If this fails, its time to live ends it.
            let _ = agent.destroy(&id).await;
        }
    });
    let why = "the runtime ends".into();
    id.await.unwrap_or(Err(StoreError::Unreachable { why }))
}

/// A connection that has gone silent is given up, at the latest, after so long; news are looked for without it meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

async fn look_out(agent: Agent, key: String, recurse: bool, mut index: u64, ttl: Duration, ear: Arc<Notify>) {
    let wait = ttl.clamp(Duration::from_secs(1), LONGEST_WAIT);
    loop {
        match agent.changed(&key, recurse, index, wait).await {
            Ok((_, next)) if next == index => {}
            Ok((entries, next)) => {
                index = next;
                ear.notify_one();
                if entries.is_empty() && !recurse {
                    // It has been deleted: the session is over.
                    return;
                }
            }
            // What has happened meanwhile is told when it answers again.
            Err(_) => tokio::time::sleep(ttl / 10).await,
        }
        if index == 0 {
            // Of a store that was restored, or that says no number: the next answer comes at once.
            tokio::time::sleep(ttl / 10).await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(task) = self.watch.get_mut() {
            task.abort();
        }
    }
}

/// All sessions of a handle.
#[derive(Debug)]
pub(super) struct Seats {
    taken: Mutex<HashMap<(Key, Session), Arc<Seat>>>,
    clock: Clock,
    /// Another one in each handle: others write as well.
    seed: u64,
    numbers: AtomicU64,
}

impl Default for Seats {
    fn default() -> Self {
        Self::of_seed(random::number())
    }
}

impl Seats {
    /// Sessions whose chance is that of `seed`.
    pub(super) fn of_seed(seed: u64) -> Self {
        Self {
            taken: Mutex::default(),
            clock: Clock::real(),
            seed,
            numbers: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn get(&self, key: &Key, session: Session) -> Option<Arc<Seat>> {
        self.taken.lock().get(&(key.clone(), session)).cloned()
    }

    /// The session of `step`, which is made when it begins; `None` when there is none.
    pub(super) async fn of(&self, agent: &Agent, key: &Key, step: &Step) -> Result<Option<Arc<Seat>>, StoreError> {
        if let Some(seat) = self.get(key, step.session) {
            return Ok(Some(seat));
        }
        if !step.begin || step.end {
            return Ok(None);
        }
        let sent = self.clock.now();
        let id = made(agent, step.ttl).await?.into();
        let seat = Arc::new(Seat {
            id,
            clock: self.clock.clone(),
            renewed: Mutex::new(sent),
            lost: false.into(),
            overtaken: false.into(),
            ear: Arc::default(),
            watch: Mutex::default(),
        });
        self.taken.lock().insert((key.clone(), step.session), Arc::clone(&seat));
        Ok(Some(seat))
    }

    /// Ends when there is news of the session.
    pub(super) async fn news(&self, key: &Key, session: Session) {
        match self.get(key, session) {
            Some(seat) => seat.ear.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn remove(&self, key: &Key, session: Session) {
        let seat = self.taken.lock().remove(&(key.clone(), session));
        drop(seat);
    }

    /// What nobody has written before: Consul takes a write of the same for none.
    pub(super) fn nonce(&self) -> String {
        // Relaxed: a number of its own is all that is wanted.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        if seeded!("consul_writes_the_same") {
            return format!("{:016x}.0", self.seed);
        }
        format!("{:016x}.{number}", random::number())
    }

    /// A part of `time`, at random: those who were in each other's way are not again.
    pub(super) fn part_of(&self, time: Duration) -> Duration {
        // Relaxed: as above.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        time.mul_f64(nth_fraction(self.seed, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::http::HttpOptions;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// What is asked, up to its body.
    async fn asked(stream: &mut TcpStream) -> String {
        let mut buffer = vec![0; 4096];
        let read = stream.read(&mut buffer).await.expect("a request");
        String::from_utf8_lossy(&buffer[..read]).into_owned()
    }

    async fn answer(stream: &mut TcpStream, body: &str) {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.expect("somebody listens");
    }

    /// The step ran out of time before the store had answered.
    #[tokio::test]
    async fn a_session_that_nobody_waits_for_any_more_is_ended_when_it_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let mut options = HttpOptions::new(address.into());
        options.timeout = Duration::from_secs(60);
        let agent = Agent::new(options.connect().unwrap(), None);
        let (seats, key) = (Seats::of_seed(1), Key::new("key").unwrap());
        let session = Session { client: 1, number: 1 };
        let step = Step::first(session, Duration::from_secs(10));
        let mut stream;
        {
            let mut of = std::pin::pin!(seats.of(&agent, &key, &step));
            assert!(futures::poll!(of.as_mut()).is_pending());
            stream = listener.accept().await.unwrap().0;
            assert!(asked(&mut stream).await.starts_with("PUT /v1/session/create"));
            assert!(futures::poll!(of.as_mut()).is_pending());
        }
        answer(&mut stream, r#"{"ID":"unwanted"}"#).await;
        assert!(asked(&mut stream).await.starts_with("PUT /v1/session/destroy/unwanted"));
        answer(&mut stream, "true").await;
        assert!(seats.get(&key, session).is_none());
    }
}
