//! The driver: the one task of a remote limiter that talks to the store.
//!
//! One sync is under way at a time, and everything that comes up meanwhile goes into the next one. So permits may be dropped
//! anywhere, also where awaiting is impossible: the client records it, and the driver passes it on.

use super::backend::{Backend, Session, StoreError, SyncReply, SyncRequest};
use super::client::Action;
use super::shared::Shared;
use crate::time::{Instant, Sleep};
use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

/// The task of a remote limiter: a future that ends some time after the limiter was closed or dropped, when the store knows of
/// it. Without it nothing is requested, renewed or returned.
///
/// A driver that is dropped before, as with its runtime or by a panic, closes its limiter: each wait ends as
/// [`Closed`](crate::Reason::Closed), and so does each later one. Permits stay valid until their lease ends, and the store gives their
/// units to others after the time to live. A limiter in a `static` is closed with the runtime that it was built in: build one in each
/// runtime, or give the driver [a thread of its own](Self::spawn_thread).
///
/// ```
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::{ManualClock};
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let (exports, driver) = Remote::permits(Key::new("exports")?, 1).on(&clock).build(store)?;
/// let works = async {
///     drop(exports.acquire(1).await.unwrap());
///     drop(exports);
/// };
/// // The driver ends when the limiter is gone, and the store knows.
/// let ended = clock.run(futures::future::join(works, driver));
/// assert_eq!(ended, ((), ()));
///
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[must_use = "a remote limiter does nothing unless its driver runs"]
pub struct Driver(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Driver {
    pub(super) fn of<B: Backend>(shared: Arc<Shared<B>>) -> Self {
        // Also of a driver that is dropped before it ran.
        let leaving = Leaving(shared);
        Self::new(async move { drive(&leaving.0).await })
    }

    pub(super) fn new(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(driver))
    }

    /// Runs the driver on a thread of its own, with a runtime of its own: for programs whose runtime may be blocked for longer than
    /// a lease, which would be lost meanwhile. The thread ends with the driver.
    ///
    /// A store opens its connections when it is first used, in the runtime that uses it. So give the limiter a store that no
    /// limiter of another runtime shares.
    ///
    /// # Errors
    /// The operating system's, when there can be no thread or no runtime.
    ///
    /// ```
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::Clock;
    /// let store = Memory::new(&Clock::real());
    /// let (exports, driver) = Remote::permits(Key::new("exports")?, 1).build(store)?;
    /// let thread = driver.spawn_thread()?;
    /// drop(futures::executor::block_on(exports.acquire(1)).unwrap());
    /// drop(exports);
    /// thread.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_thread(self) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("tollgate-remote".into());
        thread.spawn(move || runtime.block_on(self))
    }

    /// Runs the driver on the thread that gives it work: at once, inside that call. For stores that answer at once, such as
    /// [`Memory`](super::Memory), and for virtual time: no runtime is needed then.
    pub fn in_place(self) {
        let pumped = Arc::new(InPlace(Mutex::new(Place {
            driver: Some(self.0),
            again: false,
        })));
        pumped.run();
    }
}

impl Future for Driver {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// A driver that its wakers poll.
struct InPlace(Mutex<Place>);

struct Place {
    /// Empty while a thread polls it, and once it has ended.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// It was woken during a poll.
    again: bool,
}

impl InPlace {
    /// Polls the driver until it waits, unless that is under way.
    fn run(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut cx = Context::from_waker(&waker);
        let taken = {
            let mut place = self.0.lock();
            place.again = true;
            place.driver.take()
        };
        let Some(mut driver) = taken else { return };
        loop {
            self.0.lock().again = false;
            if driver.as_mut().poll(&mut cx).is_ready() {
                return;
            }
            let mut place = self.0.lock();
            if !place.again {
                place.driver = Some(driver);
                return;
            }
        }
    }
}

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        self.run();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.run();
    }
}

/// When the driver ends, also when it is dropped before it could tell the store, the limiter is closed, and the backend forgets the
/// sessions.
struct Leaving<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> Drop for Leaving<B> {
    fn drop(&mut self) {
        let (key, sessions) = self.0.with(|client| {
            client.stop();
            (client.config().key.clone(), client.sessions())
        });
        for session in sessions {
            self.0.backend.leave(&key, session);
        }
    }
}

/// An instant that is not reached.
pub(super) const NEVER: Instant = Instant::from_ticks(u64::MAX);

async fn drive<B: Backend>(shared: &Shared<B>) {
    let mut timer = Sleep::until(&shared.clock, NEVER);
    loop {
        let now = shared.clock.now();
        let (todo, ended_sessions) = shared.with(|client| {
            client.check_process(now);
            client.on_tick(now);
            (client.next_action(now), client.take_ended_sessions())
        });
        if !ended_sessions.is_empty() {
            let key = shared.with(|client| client.config().key.clone());
            ended_sessions
                .iter()
                .for_each(|&session| shared.backend.leave(&key, session));
        }
        match todo {
            Action::Send(sync) => send(shared, sync, &mut timer).await,
            Action::Wait(until, session) => wait(shared, until, session, &mut timer).await,
            Action::Stop => return,
        }
    }
}

/// Sends a sync, and ticks meanwhile: a lease that ends while the store is silent ends in time.
async fn send<B: Backend>(shared: &Shared<B>, sync: SyncRequest, timer: &mut Sleep) {
    let (key, rule, timeout) = shared.with(|client| {
        (
            client.config().key.clone(),
            client.config().store_rule(),
            client.config().timeout,
        )
    });
    let sent = shared.clock.now();
    let limit = shared.clock.after(sent, timeout);
    let mut answer = pin!(shared.backend.sync(&key, &rule, &sync));
    let answer: Result<SyncReply, StoreError> = poll_fn(|cx| {
        loop {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            let now = shared.clock.now();
            if now >= limit {
                return Poll::Ready(Err(StoreError::TimedOut { after: timeout }));
            }
            let next = shared.with(|client| {
                client.on_tick(now);
                client.next_tick(now)
            });
            timer.reset(next.map_or(limit, |next| next.min(limit)));
            if Pin::new(&mut *timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
    let now = shared.clock.now();
    let leaves = shared.with(|client| {
        client.on_reply(&sync, sent, now, answer);
        sync.end && !client.is_ending(sync.session)
    });
    if leaves {
        // The end was answered, or given up.
        shared.backend.leave(&key, sync.session);
    }
}

/// Waits for work.
async fn wait<B: Backend>(shared: &Shared<B>, until: Option<Instant>, session: Option<Session>, timer: &mut Sleep) {
    let key = shared.with(|client| client.config().key.clone());
    timer.reset(until.unwrap_or(NEVER));
    let mut notified = pin!(async {
        match session {
            Some(session) => shared.backend.notified(&key, session).await,
            None => std::future::pending().await,
        }
    });
    poll_fn(|cx| {
        // Outside the lock: it may run foreign code.
        let waker = cx.waker().clone();
        let (driver_woken, old) = shared.with(|client| client.poll_driver(waker));
        drop(old);
        if driver_woken {
            return Poll::Ready(());
        }
        if notified.as_mut().poll(cx).is_ready() {
            if let Some(session) = session {
                let now = shared.clock.now();
                let notification = shared.backend.notification(&key, session);
                shared.with(|client| client.on_notification(session, &notification, now));
            }
            return Poll::Ready(());
        }
        match until {
            Some(_) => Pin::new(&mut *timer).poll(cx),
            None => Poll::Pending,
        }
    })
    .await;
}
