//! Places in the queue of a worker that has taken several tasks at once: it returns them late, unnoticed by submitters.

use futures::future::poll_immediate;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;
use tollgate::WorkerPool;
use tollgate::pool::{Overflow, RejectReason};

const QUEUE: usize = 40;

/// A task that says that it has started, and waits until it may end.
fn gate() -> (impl FnOnce() + Send + 'static, Receiver<()>, Sender<()>) {
    let (started, has_started) = channel();
    let (release, released) = channel::<()>();
    let task = move || {
        started.send(()).unwrap();
        released.recv().unwrap();
    };
    (task, has_started, release)
}

/// Given one task in a queue of three, whose submission has taken the other places ahead, when further tasks are submitted in any
/// manner, then two find room at once, nothing is evicted for them, and the next finds none.
#[tokio::test]
async fn places_that_were_taken_ahead_are_free_for_every_submission() {
    for overflow in [Overflow::Block, Overflow::DropOldest] {
        let pool = WorkerPool::builder().workers(1).max_queue(3).overflow(overflow);
        let pool = pool.build().unwrap();
        let (task, has_started, release) = gate();
        pool.execute(task).unwrap();
        has_started.recv().unwrap();
        pool.execute(|| ()).unwrap();
        let second = poll_immediate(pin!(pool.submit_async(|| 2))).await;
        let second = second.expect("there is room").unwrap();
        assert!(pool.execute_all([|| ()]).is_empty());
        assert_eq!((pool.stats().queued, pool.stats().discarded), (3, 0));
        let fourth = poll_immediate(pin!(pool.submit_async(|| 4))).await;
        assert_eq!(fourth.is_none(), overflow == Overflow::Block);
        release.send(()).unwrap();
        assert_eq!(second.join().unwrap(), 2);
        assert!(pool.shutdown(Duration::from_secs(60)).is_clean());
    }
}

#[test]
fn a_place_is_free_once_its_task_has_started_however_many_the_worker_took() {
    let pool = WorkerPool::builder().workers(1).max_queue(QUEUE).build().unwrap();
    let (first, first_started, end_first) = gate();
    let (eighth, eighth_started, end_eighth) = gate();
    let (ninth, ninth_started, end_ninth) = gate();
    pool.execute(first).unwrap();
    first_started.recv().unwrap();
    // The worker takes sixteen of these at once; two of them wait in the midst.
    assert!(pool.execute_all((0..7).map(|_| || ())).is_empty());
    pool.execute(eighth).unwrap();
    pool.execute(ninth).unwrap();
    assert!(pool.execute_all((9..QUEUE).map(|_| || ())).is_empty());
    assert!(matches!(pool.try_submit(|| ()), Err(full) if full.reason == RejectReason::Full));

    end_first.send(()).unwrap();
    eighth_started.recv().unwrap();
    let taken = (0..QUEUE).map_while(|_| pool.try_submit(|| ()).ok()).count();
    assert_eq!((taken, pool.stats().queued), (8, QUEUE));

    // One that waits for room is let in by the ninth, which does not end.
    let other = pool.clone();
    let waiting = thread::spawn(move || other.execute(|| ()).is_ok());
    end_eighth.send(()).unwrap();
    ninth_started.recv().unwrap();
    assert!(waiting.join().unwrap());
    assert_eq!(pool.stats().queued, QUEUE);
    end_ninth.send(()).unwrap();
    assert!(pool.shutdown(Duration::from_secs(60)).is_clean());
}
