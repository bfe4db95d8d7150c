//! The driver: the one task of a remote limiter that talks to the store.
//!
//! It takes one step at a time, and everything that has come up meanwhile goes into the next one. So permits may be dropped
//! anywhere, also where nothing can be awaited: they leave word at the desk, and the driver passes it on.

use super::backend::{Backend, Reply, Session, Step, StoreError};
use super::desk::Todo;
use super::shared::Shared;
use crate::sync::notify::{self, Notified};
use crate::time::{Instant, Sleep};
use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// The task of a remote limiter: a future that ends some time after the limiter was closed or dropped, when the store has been
/// told. Nothing is asked for, renewed or given back unless it runs: when it is dropped before, as with its runtime, what is held
/// at the store goes with the time to live.
#[must_use = "a remote limiter does nothing unless its driver runs"]
pub struct Driver(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Driver {
    pub(super) fn of<B: Backend>(shared: Arc<Shared<B>>) -> Self {
        Self(Box::pin(drive(shared)))
    }

    /// Runs it on whichever thread has something for it to do: at once, inside the call that caused it. For stores that answer
    /// at once, such as [`Memory`](super::Memory), and for virtual time: no runtime is needed then.
    pub fn in_place(self) {
        let pumped = Arc::new(Pumped(Mutex::new(Place {
            driver: Some(self.0),
            again: false,
        })));
        notify::call(pumped);
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

/// A driver that is polled by whoever wakes it.
struct Pumped(Mutex<Place>);

struct Place {
    /// Empty while somebody polls it, and once it has ended.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// It was woken while somebody polled it.
    again: bool,
}

impl Notified for Pumped {
    fn notified(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
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

impl Wake for Pumped {
    fn wake(self: Arc<Self>) {
        notify::call(self);
    }
}

/// Takes leave of the backend when the driver ends, also when it is dropped before it could tell the store.
struct Leaving<'a, B: Backend>(&'a Shared<B>);

impl<B: Backend> Drop for Leaving<'_, B> {
    fn drop(&mut self) {
        if seeded!("remote_drops_without_leave") {
            return;
        }
        let (key, sessions) = self.0.with(|desk| (desk.plan().key.clone(), desk.sessions()));
        for session in sessions {
            self.0.backend.leave(&key, session);
        }
    }
}

async fn drive<B: Backend>(shared: Arc<Shared<B>>) {
    let _leaving = Leaving(&*shared);
    loop {
        let now = shared.clock.now();
        let (todo, parted) = shared.with(|desk| {
            desk.look_at_process(now);
            desk.tick(now);
            (desk.next(now), desk.take_parted())
        });
        if !parted.is_empty() {
            let key = shared.with(|desk| desk.plan().key.clone());
            parted.iter().for_each(|&session| shared.backend.leave(&key, session));
        }
        match todo {
            Todo::Send(step) => send(&shared, step).await,
            Todo::Wait(until, session) => wait(&shared, until, session).await,
            Todo::Stop => return,
        }
    }
}

/// Takes a step, and lets time pass meanwhile: what expires while the store is silent expires in time.
async fn send<B: Backend>(shared: &Shared<B>, step: Step) {
    let (key, rule, timeout) = shared.with(|desk| (desk.plan().key.clone(), desk.plan().rule, desk.plan().timeout));
    let sent = shared.clock.now();
    let limit = shared.clock.after(sent, timeout);
    let mut answer = pin!(shared.backend.step(&key, &rule, &step));
    let mut timer = Sleep::until(&shared.clock, limit);
    let answer: Result<Reply, StoreError> = poll_fn(|cx| {
        loop {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            let now = shared.clock.now();
            if now >= limit {
                return Poll::Ready(Err(StoreError::TimedOut { after: timeout }));
            }
            let next = shared.with(|desk| {
                desk.tick(now);
                desk.wakes_at(now)
            });
            timer.reset(next.map_or(limit, |next| next.min(limit)));
            if Pin::new(&mut timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
    let now = shared.clock.now();
    let leaves = shared.with(|desk| {
        desk.hear(&step, sent, now, answer);
        step.end && !desk.takes_leave_of(step.session)
    });
    if leaves {
        // The end was answered, or given up.
        shared.backend.leave(&key, step.session);
    }
}

/// Waits for something to do.
async fn wait<B: Backend>(shared: &Shared<B>, until: Option<Instant>, session: Option<Session>) {
    let key = shared.with(|desk| desk.plan().key.clone());
    let mut timer = until.map(|until| Sleep::until(&shared.clock, until));
    let mut news = pin!(async {
        match session {
            Some(session) => shared.backend.news(&key, session).await,
            None => std::future::pending().await,
        }
    });
    poll_fn(|cx| {
        // Outside the lock: it may run foreign code.
        let waker = cx.waker().clone();
        let (poked, old) = shared.with(|desk| desk.was_poked(waker));
        drop(old);
        if poked {
            return Poll::Ready(());
        }
        if news.as_mut().poll(cx).is_ready() {
            if let Some(session) = session {
                let now = shared.clock.now();
                let told = shared.backend.told(&key, session);
                shared.with(|desk| desk.hear_news(session, &told, now));
            }
            return Poll::Ready(());
        }
        match &mut timer {
            Some(timer) => Pin::new(timer).poll(cx),
            None => Poll::Pending,
        }
    })
    .await;
}
