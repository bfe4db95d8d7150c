// Compiled twice: with `under_test` as `tokio::sync`, and as `tollgate`. Nothing else differs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use under_test::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError};

static GLOBAL: Semaphore = Semaphore::const_new(3);

/// Permits borrowed from a static shorten to any life.
fn shorten<'a>(permit: SemaphorePermit<'static>, _: &'a str) -> SemaphorePermit<'a> {
    permit
}

/// What every method says, in one fixed order.
pub(super) fn tour() -> Vec<String> {
    let mut log = Vec::new();
    let mut say = |what: &str, value: String| log.push(format!("{what}: {value}"));
    say("max", Semaphore::MAX_PERMITS.to_string());
    let permit = GLOBAL.try_acquire_many(2).unwrap();
    say(
        "static",
        format!("{} {}", shorten(permit, "").num_permits(), GLOBAL.available_permits()),
    );

    let semaphore = Arc::new(Semaphore::new(5));
    let mut a = semaphore.try_acquire_many(3).unwrap();
    let b = semaphore.try_acquire().unwrap();
    a.merge(b);
    say(
        "merged",
        format!("{} {}", a.num_permits(), semaphore.available_permits()),
    );
    let c = a.split(3).unwrap();
    say(
        "split",
        format!("{} {} {}", a.num_permits(), c.num_permits(), a.split(2).is_none()),
    );
    let empty = a.split(0).unwrap();
    say("split of none", empty.num_permits().to_string());
    drop(c);
    a.forget();
    say("forgotten", semaphore.available_permits().to_string());
    semaphore.add_permits(2);
    say("added", semaphore.available_permits().to_string());
    say(
        "forget_permits",
        format!("{} {}", semaphore.forget_permits(4), semaphore.available_permits()),
    );
    say(
        "forget_permits of more",
        format!("{} {}", semaphore.forget_permits(9), semaphore.available_permits()),
    );
    say("empty", format!("{:?}", semaphore.try_acquire().map(|_| ())));
    say(
        "none of none",
        format!("{:?}", semaphore.try_acquire_many(0).map(|permit| permit.num_permits())),
    );
    semaphore.add_permits(4);
    let mut owned: OwnedSemaphorePermit = Arc::clone(&semaphore).try_acquire_many_owned(2).unwrap();
    owned.merge(Arc::clone(&semaphore).try_acquire_owned().unwrap());
    say(
        "owned",
        format!("{} {}", owned.num_permits(), Arc::ptr_eq(owned.semaphore(), &semaphore)),
    );
    drop(owned.split(1));
    say("owned split", semaphore.available_permits().to_string());
    drop(owned);
    let waiting = Arc::clone(&semaphore);
    let blocked = std::thread::spawn(move || waiting.blocking_acquire_many(4).unwrap().num_permits());
    say("blocking", blocked.join().unwrap().to_string());
    semaphore.close();
    say(
        "closed",
        format!("{} {:?}", semaphore.is_closed(), semaphore.try_acquire().map(|_| ())),
    );
    say(
        "closed, none",
        format!("{:?}", semaphore.try_acquire_many(0).map(|_| ())),
    );
    say(
        "closed, blocking",
        format!("{:?}", semaphore.blocking_acquire().map(|_| ())),
    );
    semaphore.add_permits(1);
    say(
        "closed, forget",
        format!("{} {}", semaphore.forget_permits(2), semaphore.is_closed()),
    );
    let closed: AcquireError = semaphore.blocking_acquire().map(|_| ()).unwrap_err();
    say(
        "errors",
        format!("{closed} {} {}", TryAcquireError::Closed, TryAcquireError::NoPermits),
    );

    let panics = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    let max = Semaphore::MAX_PERMITS;
    say(
        "new(max)",
        panics(&|| {
            Semaphore::new(max);
        })
        .to_string(),
    );
    say(
        "new(max + 1)",
        panics(&|| {
            Semaphore::new(max + 1);
        })
        .to_string(),
    );
    say(
        "add over max",
        panics(&|| Semaphore::new(max).add_permits(1)).to_string(),
    );
    say(
        "add up to max",
        panics(&|| Semaphore::new(1).add_permits(max - 1)).to_string(),
    );
    say(
        "merge of others",
        panics(&|| {
            let (one, other) = (Semaphore::new(1), Semaphore::new(1));
            one.try_acquire().unwrap().merge(other.try_acquire().unwrap());
        })
        .to_string(),
    );
    log
}

type Wait<'a> = Pin<Box<dyn Future<Output = Result<SemaphorePermit<'a>, AcquireError>> + 'a>>;

/// Runs operations on one semaphore and logs what each says and leaves behind.
pub(super) fn run(permits: usize, operations: &[(u8, u32)]) -> Vec<String> {
    let semaphore = Semaphore::new(permits);
    let mut held: Vec<SemaphorePermit<'_>> = Vec::new();
    let mut waits: Vec<Wait<'_>> = Vec::new();
    let mut log = Vec::new();
    let context = &mut Context::from_waker(Waker::noop());
    for &(operation, n) in operations {
        let index = n as usize;
        let said = match operation {
            0 => match semaphore.try_acquire_many(n) {
                Ok(permit) => {
                    held.push(permit);
                    "taken".into()
                }
                Err(error) => error.to_string(),
            },
            1 if index < held.len() => format!("released {}", held.swap_remove(index).num_permits()),
            2 => {
                let mut wait: Wait<'_> = Box::pin(semaphore.acquire_many(n));
                match wait.as_mut().poll(context) {
                    Poll::Ready(Ok(permit)) => {
                        held.push(permit);
                        "acquired".into()
                    }
                    Poll::Ready(Err(error)) => error.to_string(),
                    Poll::Pending => {
                        waits.push(wait);
                        "waits".into()
                    }
                }
            }
            3 if index < waits.len() => {
                drop(waits.remove(index));
                "left".into()
            }
            4 => {
                semaphore.add_permits(index);
                "added".into()
            }
            5 => format!("forgot {}", semaphore.forget_permits(index)),
            6 if n == 0 => {
                semaphore.close();
                "closed".into()
            }
            _ => "nothing".to_string(),
        };
        log.push(said);
        // Whoever can go on does.
        let mut index = 0;
        while index < waits.len() {
            match waits[index].as_mut().poll(context) {
                Poll::Pending => index += 1,
                Poll::Ready(result) => {
                    drop(waits.remove(index));
                    log.push(format!("{index} ended: {}", result.is_ok()));
                    held.extend(result);
                }
            }
        }
        log.push(format!(
            "{} free, {} waiting",
            semaphore.available_permits(),
            waits.len()
        ));
    }
    log
}
