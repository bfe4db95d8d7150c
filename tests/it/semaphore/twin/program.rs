//! One program over whatever `super::sync` is, and its trace.

use super::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError};
use crate::semaphore::tokio_twin::{Op, Trace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

/// The message of the panic in `call`.
fn panic_of<R>(call: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(call)) else {
        return "no panic".into();
    };
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).into(),
        _ => "a panic without a message".into(),
    }
}

macro_rules! note {
    ($trace:ident, $($value:expr),+ $(,)?) => {
        $($trace.push(format!("{} = {:?}", stringify!($value), $value));)+
    };
}

static STATIC: Semaphore = Semaphore::const_new(2);

pub(crate) fn takes_and_gives_back() -> Trace {
    let mut trace = Trace::new();
    note!(trace, Semaphore::MAX_PERMITS, STATIC.available_permits());
    let held: SemaphorePermit<'static> = STATIC.try_acquire().unwrap();
    note!(trace, held.num_permits(), STATIC.available_permits());
    note!(
        trace,
        STATIC.try_acquire_many(2).map(drop),
        STATIC.try_acquire_many(1).map(drop)
    );
    drop(held);
    let semaphore = Semaphore::new(3);
    let none = semaphore.try_acquire_many(0).unwrap();
    let all = semaphore.try_acquire_many(3).unwrap();
    note!(
        trace,
        none.num_permits(),
        all.num_permits(),
        semaphore.try_acquire_many(0).is_ok()
    );
    note!(trace, semaphore.try_acquire().map(drop).unwrap_err().to_string());
    drop((none, all));
    semaphore.add_permits(2);
    semaphore.add_permits(0);
    note!(trace, semaphore.available_permits(), semaphore.forget_permits(0));
    note!(
        trace,
        semaphore.forget_permits(4),
        semaphore.forget_permits(4),
        semaphore.available_permits()
    );
    trace
}

pub(crate) fn merges_splits_and_forgets() -> Trace {
    let mut trace = Trace::new();
    let semaphore = Semaphore::new(10);
    let mut one = semaphore.try_acquire_many(5).unwrap();
    let two = semaphore.try_acquire_many(3).unwrap();
    note!(trace, std::ptr::eq(one.semaphore(), &semaphore));
    one.merge(two);
    note!(trace, one.num_permits(), one.split(9).is_none(), one.num_permits());
    let (part, nothing) = (one.split(6).unwrap(), one.split(0).unwrap());
    note!(trace, part.num_permits(), nothing.num_permits(), one.num_permits());
    part.forget();
    drop(nothing);
    note!(trace, semaphore.available_permits());
    drop(one);
    note!(trace, semaphore.available_permits());

    let owned = Arc::new(Semaphore::new(4));
    let mut one: OwnedSemaphorePermit = Arc::clone(&owned).try_acquire_many_owned(3).unwrap();
    note!(trace, Arc::ptr_eq(one.semaphore(), &owned), Arc::strong_count(&owned));
    let part = one.split(1).unwrap();
    note!(trace, Arc::strong_count(&owned), one.split(3).is_none());
    one.merge(part);
    note!(trace, one.num_permits(), Arc::strong_count(&owned));
    note!(trace, Arc::clone(&owned).try_acquire_many_owned(2).map(drop));
    note!(trace, Arc::clone(&owned).try_acquire_owned().map(drop));
    one.forget();
    note!(trace, owned.available_permits(), Arc::strong_count(&owned));
    trace
}

pub(crate) fn panics_where_documented() -> Trace {
    let mut trace = Trace::new();
    let max = Semaphore::MAX_PERMITS;
    note!(
        trace,
        panic_of(|| Semaphore::new(max + 1)),
        panic_of(|| Semaphore::new(max))
    );
    note!(trace, panic_of(|| Semaphore::const_new(max + 1)) != "no panic");
    let full = Semaphore::new(max);
    note!(trace, full.available_permits() == max, panic_of(|| full.add_permits(1)));
    let some = Semaphore::new(1);
    note!(trace, panic_of(|| some.add_permits(max)));
    note!(trace, panic_of(|| Semaphore::new(0).add_permits(max)));
    let (a, b) = (Semaphore::new(2), Semaphore::new(2));
    let mut of_a = a.try_acquire().unwrap();
    note!(trace, panic_of(|| of_a.merge(b.try_acquire().unwrap())));
    note!(trace, of_a.num_permits(), a.available_permits(), b.available_permits());
    let (a, b) = (Arc::new(Semaphore::new(2)), Arc::new(Semaphore::new(1)));
    let mut of_a = Arc::clone(&a).try_acquire_owned().unwrap();
    note!(
        trace,
        panic_of(|| of_a.merge(Arc::clone(&b).try_acquire_owned().unwrap()))
    );
    note!(trace, of_a.num_permits(), b.available_permits());
    trace
}

pub(crate) fn waits_and_closes() -> Trace {
    let mut trace = Trace::new();
    let count = Arc::new(Count::default());
    let semaphore = Arc::new(Semaphore::new(1));
    let held = semaphore.try_acquire().unwrap();
    let mut one = pin!(semaphore.acquire());
    let mut many = pin!(semaphore.acquire_many(2));
    let mut owned = Box::pin(Arc::clone(&semaphore).acquire_owned());
    let mut many_owned = Box::pin(Arc::clone(&semaphore).acquire_many_owned(2));
    note!(
        trace,
        poll(one.as_mut(), &count).is_ready(),
        poll(many.as_mut(), &count).is_ready()
    );
    note!(
        trace,
        poll(owned.as_mut(), &count).is_ready(),
        poll(many_owned.as_mut(), &count).is_ready()
    );
    note!(trace, semaphore.try_acquire_many(0).is_ok());
    drop(held);
    note!(trace, count.0.load(Ordering::SeqCst), semaphore.available_permits());
    let granted: Poll<Result<SemaphorePermit<'_>, AcquireError>> = poll(one, &count);
    note!(
        trace,
        matches!(&granted, Poll::Ready(Ok(permit)) if permit.num_permits() == 1)
    );
    semaphore.add_permits(2);
    note!(
        trace,
        count.0.load(Ordering::SeqCst),
        poll(many, &count).map(|result| result.map(|permit| permit.num_permits()))
    );
    // `many` has been given back at once, so `owned` has one of its two, and the other is kept for the last.
    note!(
        trace,
        count.0.load(Ordering::SeqCst),
        semaphore.available_permits(),
        semaphore.forget_permits(1)
    );
    semaphore.close();
    semaphore.close();
    note!(trace, count.0.load(Ordering::SeqCst), semaphore.is_closed());
    // Granted before it was closed, and looked at after.
    note!(trace, poll(owned.as_mut(), &count).map(|result| result.map(drop)));
    note!(trace, poll(many_owned.as_mut(), &count).map(|result| result.map(drop)));
    drop((owned, many_owned));
    note!(trace, semaphore.available_permits());
    drop(granted);
    note!(
        trace,
        semaphore.available_permits(),
        semaphore.try_acquire().map(drop),
        semaphore.try_acquire_many(0).map(drop)
    );
    note!(trace, semaphore.try_acquire().map(drop) == Err(TryAcquireError::Closed));
    note!(
        trace,
        poll(pin!(semaphore.acquire()), &count).map(|result| result.map(drop).unwrap_err().to_string())
    );
    note!(
        trace,
        poll(pin!(semaphore.acquire_many(0)), &count).map(|result| result.map(drop))
    );
    note!(trace, semaphore.blocking_acquire().map(drop));
    semaphore.add_permits(1);
    note!(
        trace,
        semaphore.available_permits(),
        semaphore.forget_permits(9),
        semaphore.available_permits()
    );
    trace
}

pub(crate) fn blocks_threads() -> Trace {
    let mut trace = Trace::new();
    let semaphore = Arc::new(Semaphore::new(0));
    let other = Arc::clone(&semaphore);
    let (tell, told) = std::sync::mpsc::channel();
    let blocked = std::thread::spawn(move || {
        let mut held = [0; 4];
        held[0] = other.blocking_acquire().unwrap().num_permits();
        held[1] = other.blocking_acquire_many(2).unwrap().num_permits();
        held[2] = tollgate::Clock::real()
            .run(Arc::clone(&other).acquire_owned())
            .unwrap()
            .num_permits();
        held[3] = tollgate::Clock::real()
            .run(Arc::clone(&other).acquire_many_owned(2))
            .unwrap()
            .num_permits();
        tell.send(held).unwrap();
        other.blocking_acquire_many(3).map(drop)
    });
    semaphore.add_permits(1);
    semaphore.add_permits(1);
    note!(trace, told.recv().unwrap());
    semaphore.close();
    note!(trace, blocked.join().unwrap(), semaphore.available_permits());
    trace
}

type Wait = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>>>>;

/// Runs a program of single steps, all on one thread, and notes the observable state after each.
pub(crate) fn run(permits: usize, ops: &[Op]) -> Trace {
    let mut trace = Trace::new();
    let semaphore = Arc::new(Semaphore::new(permits));
    let mut waits: Vec<(Wait, Arc<Count>)> = Vec::new();
    let mut held: Vec<OwnedSemaphorePermit> = Vec::new();
    for (at, &op) in ops.iter().enumerate() {
        let seen = match op {
            Op::Try(n) => match Arc::clone(&semaphore).try_acquire_many_owned(n) {
                Ok(permit) => {
                    held.push(permit);
                    "taken".into()
                }
                Err(error) => error.to_string(),
            },
            Op::Wait(n) => {
                let wait: Wait = match n {
                    1 => Box::pin(Arc::clone(&semaphore).acquire_owned()),
                    n => Box::pin(Arc::clone(&semaphore).acquire_many_owned(n)),
                };
                waits.push((wait, Arc::default()));
                "made".into()
            }
            Op::Poll(i) if !waits.is_empty() => {
                let i = i % waits.len();
                let (wait, count) = &mut waits[i];
                match poll(wait.as_mut(), count) {
                    Poll::Pending => "pending".into(),
                    Poll::Ready(result) => {
                        drop(waits.remove(i));
                        match result {
                            Ok(permit) => {
                                held.push(permit);
                                "acquired".into()
                            }
                            Err(error) => error.to_string(),
                        }
                    }
                }
            }
            Op::Leave(i) if !waits.is_empty() => {
                let i = i % waits.len();
                drop(waits.remove(i));
                "left".into()
            }
            Op::Release(i) if !held.is_empty() => {
                let i = i % held.len();
                drop(held.remove(i));
                "released".into()
            }
            Op::Forget(i) if !held.is_empty() => {
                let i = i % held.len();
                held.remove(i).forget();
                "forgotten".into()
            }
            Op::Split(i, n) if !held.is_empty() => {
                let i = i % held.len();
                let part = held[i].split(n);
                let seen = format!("{:?}", part.as_ref().map(OwnedSemaphorePermit::num_permits));
                held.extend(part);
                seen
            }
            Op::Merge(i) if held.len() > 1 => {
                let other = held.remove(i % held.len());
                held[0].merge(other);
                format!("{}", held[0].num_permits())
            }
            Op::Add(n) => {
                semaphore.add_permits(n);
                "added".into()
            }
            Op::Remove(n) => format!("{}", semaphore.forget_permits(n)),
            Op::Close => {
                semaphore.close();
                // Until the waiters have looked, tokio keeps what it had set apart for the first of them.
                let seen: Vec<_> = waits
                    .drain(..)
                    .map(|(mut wait, count)| format!("{:?}", poll(wait.as_mut(), &count).map(|got| got.map(drop))))
                    .collect();
                format!("{seen:?}")
            }
            _ => continue,
        };
        let wakes: Vec<_> = waits.iter().map(|(_, count)| count.0.load(Ordering::SeqCst)).collect();
        trace.push(format!(
            "{at}: {op:?}: {seen}; {} free, closed: {}, wake-ups {wakes:?}",
            semaphore.available_permits(),
            semaphore.is_closed()
        ));
    }
    drop(waits);
    drop(held);
    trace.push(format!("{} in the end", semaphore.available_permits()));
    trace
}
