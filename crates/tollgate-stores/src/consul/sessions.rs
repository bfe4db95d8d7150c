//! The sessions of this process: their ids in Consul, their last renewals, and the watches for their notifications.

use super::api::Api;
use futures::FutureExt;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tollgate::remote::Key;
use tollgate::remote::model::random_number;
use tollgate::remote::{Session, StoreError, SyncRequest};
use tollgate::{Clock, Instant};

/// One session of ours.
#[derive(Debug)]
pub(super) struct ConsulSession {
    /// Its id in Consul.
    pub(super) id: Box<str>,
    clock: Clock,
    /// When the last confirmed renewal was sent.
    renewed: Mutex<Instant>,
    /// Consul does not know the session.
    lost: AtomicBool,
    /// Another writer was quicker the last time.
    overtaken: AtomicBool,
    pub(super) notify: Arc<Notify>,
    watch: Mutex<Option<AbortHandle>>,
}

impl ConsulSession {
    /// The time from its last renewal until `instant`.
    pub(super) fn age_at(&self, instant: Instant) -> Duration {
        self.clock.between(*self.renewed.lock(), instant)
    }

    /// Renews it if that is due. A session lives for `ttl` after a renewal; later calls find it with at least three quarters of
    /// that left.
    pub(super) async fn keep(&self, api: &Api, ttl: Duration) -> Result<(), StoreError> {
        if self.age_at(self.clock.now()) >= ttl / 4 {
            self.renew(api).await
        } else {
            Ok(())
        }
    }

    pub(super) async fn renew(&self, api: &Api) -> Result<(), StoreError> {
        let sent = self.clock.now();
        if api.renew(&self.id).await? {
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
        // Relaxed: it only chooses the way that is tried.
        self.overtaken.store(overtaken, Ordering::Relaxed);
    }

    pub(super) fn is_overtaken(&self) -> bool {
        // Relaxed: see `set_overtaken`.
        self.overtaken.load(Ordering::Relaxed)
    }

    /// Watches changes of `key` since the write `index`, or under it, from now on, unless there is a watch.
    pub(super) fn watch(&self, api: &Api, key: String, recurse: bool, index: u64, ttl: Duration) {
        let mut watch = self.watch.lock();
        if watch.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let task = tokio::spawn(look_out(
            api.clone(),
            key,
            recurse,
            index,
            ttl,
            Arc::clone(&self.notify),
        ));
        *watch = Some(task.abort_handle());
    }

    /// Ends the watch, and drops its notification.
    pub(super) fn unwatch(&self) {
        let watch = self.watch.lock().take();
        if let Some(task) = watch {
            task.abort();
            let _ = self.notify.notified().now_or_never();
        }
    }
}

/// Creates a session in Consul. If its caller stops waiting, it is ended once it is known: it would live for two times to live.
async fn made(api: &Api, ttl: Duration) -> Result<String, StoreError> {
    let (notify, id) = oneshot::channel();
    let api = api.clone();
    tokio::spawn(async move {
        if let Err(Ok(id)) = notify.send(api.create(ttl).await) {
            // If this fails, its time to live ends it.
            let _ = api.destroy(&id).await;
        }
    });
    let why = "the runtime ends".into();
    id.await.unwrap_or(Err(StoreError::Unreachable { why }))
}

/// A silent connection is given up at the latest after this time; syncs find changes without it meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

async fn look_out(api: Api, key: String, recurse: bool, mut index: u64, ttl: Duration, notify: Arc<Notify>) {
    let wait = ttl.clamp(Duration::from_secs(1), LONGEST_WAIT);
    loop {
        match api.changed(&key, recurse, index, wait).await {
            Ok((_, next)) if next == index => {}
            Ok((entries, next)) => {
                index = next;
                notify.notify_one();
                if entries.is_empty() && !recurse {
                    // It has been deleted: the session is over.
                    return;
                }
            }
            // Events meanwhile are reported when it answers again.
            Err(_) => tokio::time::sleep(ttl / 10).await,
        }
        if index == 0 {
            // Of a restored store, or one without a number: the next answer comes at once.
            tokio::time::sleep(ttl / 10).await;
        }
    }
}

impl Drop for ConsulSession {
    fn drop(&mut self) {
        if let Some(task) = self.watch.get_mut() {
            task.abort();
        }
    }
}

/// All sessions of a handle.
#[derive(Debug)]
pub(super) struct ConsulSessions {
    taken: Mutex<HashMap<(Key, Session), Arc<ConsulSession>>>,
    clock: Clock,
    numbers: AtomicU64,
}

impl Default for ConsulSessions {
    fn default() -> Self {
        Self {
            taken: Mutex::default(),
            clock: Clock::real(),
            numbers: AtomicU64::new(0),
        }
    }
}

impl ConsulSessions {
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn get(&self, key: &Key, session: Session) -> Option<Arc<ConsulSession>> {
        self.taken.lock().get(&(key.clone(), session)).cloned()
    }

    /// The session of `sync`, created if it begins; `None` when there is none.
    pub(super) async fn of(
        &self,
        api: &Api,
        key: &Key,
        sync: &SyncRequest,
    ) -> Result<Option<Arc<ConsulSession>>, StoreError> {
        if let Some(consul_session) = self.get(key, sync.session) {
            return Ok(Some(consul_session));
        }
        if !sync.begin || sync.end {
            return Ok(None);
        }
        let sent = self.clock.now();
        let id = made(api, sync.ttl).await?.into();
        let consul_session = Arc::new(ConsulSession {
            id,
            clock: self.clock.clone(),
            renewed: Mutex::new(sent),
            lost: false.into(),
            overtaken: false.into(),
            notify: Arc::default(),
            watch: Mutex::default(),
        });
        self.taken
            .lock()
            .insert((key.clone(), sync.session), Arc::clone(&consul_session));
        Ok(Some(consul_session))
    }

    /// Ends when there is a notification for the session.
    pub(super) async fn notified(&self, key: &Key, session: Session) {
        match self.get(key, session) {
            Some(consul_session) => consul_session.notify.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn remove(&self, key: &Key, session: Session) {
        let consul_session = self.taken.lock().remove(&(key.clone(), session));
        drop(consul_session);
    }

    /// A unique text: Consul ignores a write that changes nothing.
    pub(super) fn nonce(&self) -> String {
        // Relaxed: only the number has to be unique.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}.{number}", random_number())
    }

    /// A random part of `time`, so that colliding writers separate.
    pub(super) fn part_of(&self, time: Duration) -> Duration {
        time.mul_f64(random_number() as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpOptions;
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
        stream.write_all(answer.as_bytes()).await.expect("the client listens");
    }

    /// The sync ran out of time before the store had answered.
    #[tokio::test]
    async fn a_session_created_too_late_is_ended_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let options = HttpOptions::new(address.into(), Duration::from_secs(60));
        let api = Api::new(options.connect().unwrap(), None);
        let (consul_sessions, key) = (ConsulSessions::default(), Key::new("key").unwrap());
        let session = Session { client: 1, number: 1 };
        let sync = SyncRequest::first(session, Duration::from_secs(10));
        let mut stream;
        {
            let mut of = std::pin::pin!(consul_sessions.of(&api, &key, &sync));
            assert!(futures::poll!(of.as_mut()).is_pending());
            stream = listener.accept().await.unwrap().0;
            assert!(asked(&mut stream).await.starts_with("PUT /v1/session/create"));
            assert!(futures::poll!(of.as_mut()).is_pending());
        }
        answer(&mut stream, r#"{"ID":"unwanted"}"#).await;
        assert!(asked(&mut stream).await.starts_with("PUT /v1/session/destroy/unwanted"));
        answer(&mut stream, "true").await;
        assert!(consul_sessions.get(&key, session).is_none());
    }
}
