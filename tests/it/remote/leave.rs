//! How a limiter takes leave of a store that does not answer.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::ManualClock;
use tollgate::remote::{Backend, Key, Memory, Remote, Rule, Session, StoreError, SyncReply, SyncRequest};

/// A store that loses some ends. Records the requests that it received.
struct Deaf {
    store: Memory,
    deaf: AtomicU64,
    told: Mutex<Vec<&'static str>>,
}

impl Backend for Deaf {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        if sync.end {
            // Relaxed: all of it is on one thread.
            let deaf = self.deaf.load(Ordering::Relaxed);
            if deaf > 0 {
                self.deaf.store(deaf - 1, Ordering::Relaxed);
                self.told.lock().unwrap().push("an end that is not heard");
                return Err(StoreError::Unreachable { why: "deaf".into() });
            }
            self.told.lock().unwrap().push("an end");
        }
        self.store.sync(key, rule, sync).await
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        self.store.notified(key, session)
    }

    fn leave(&self, key: &Key, session: Session) {
        self.told.lock().unwrap().push("leave");
        self.store.leave(key, session);
    }
}

fn told(deaf: u64) -> Vec<&'static str> {
    let clock = ManualClock::new();
    let (store, told) = (Memory::new(&clock), Mutex::default());
    let deaf = deaf.into();
    let store = std::sync::Arc::new(Deaf { store, deaf, told });
    let remote = Remote::permits(Key::new("key").unwrap(), 1).on(&clock);
    let remote = remote.in_place(store.clone()).unwrap();
    match pin!(remote.acquire(1)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => drop(permit.unwrap()),
        Poll::Pending => panic!("it waits"),
    }
    drop(remote);
    for _ in 0..10 {
        clock.advance(Duration::from_secs(1));
    }
    let told = store.told.lock().unwrap();
    told.clone()
}

/// The local state of a session is needed as long as its end is being sent.
#[test]
fn no_session_leaves_before_its_end_is_acknowledged() {
    assert_eq!(told(0), ["an end", "leave"]);
    assert_eq!(told(1), ["an end that is not heard", "an end", "leave"]);
}

#[test]
fn an_unacknowledged_session_leaves_at_last() {
    let unheard = "an end that is not heard";
    assert_eq!(told(9), [unheard, unheard, unheard, "leave"]);
}

/// A restarted store knows no session: the local state of the session is of no use any more.
#[test]
fn a_session_unknown_to_the_store_leaves_at_once() {
    let clock = ManualClock::new();
    let (store, deaf, told) = (Memory::new(&clock), AtomicU64::new(0), Mutex::default());
    let store = std::sync::Arc::new(Deaf { store, deaf, told });
    let remote = Remote::permits(Key::new("key").unwrap(), 1).on(&clock);
    let remote = remote.in_place(store.clone()).unwrap();
    let permit = clock.run(remote.acquire(1)).unwrap();
    store.store.clear();
    while !permit.is_lost() {
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(*store.told.lock().unwrap(), ["leave"]);
}

/// As when its runtime ends, or its task is aborted.
#[test]
fn a_driver_that_is_dropped_leaves_nothing_here() {
    let clock = ManualClock::new();
    let (store, deaf, told) = (Memory::new(&clock), AtomicU64::new(0), Mutex::default());
    let store = std::sync::Arc::new(Deaf { store, deaf, told });
    let remote = Remote::permits(Key::new("key").unwrap(), 1).on(&clock);
    let (remote, driver) = remote.build(store.clone()).unwrap();
    let mut driver = Box::pin(driver);
    let mut acquire = pin!(remote.acquire(1));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(acquire.as_mut().poll(&mut cx).is_pending() && driver.as_mut().poll(&mut cx).is_pending());
    assert!(acquire.poll(&mut cx).is_ready());
    drop(driver);
    assert_eq!(*store.told.lock().unwrap(), ["leave"]);
}
