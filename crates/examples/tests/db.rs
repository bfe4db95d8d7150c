//! A cap on the connections of a real database, seen from the database: `ci/with-stores postgres -- cargo test --test db`.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use tollgate::{Semaphore, SemaphorePermit};

const WORKERS: usize = 64;
const SESSIONS: usize = 600;
const CHANGES: usize = 20;
/// The sessions that are counted carry this name.
const NAME: &str = "tollgate-worker";

/// The cap after `change` changes: up and down, also far below what is in use.
fn cap(change: usize) -> usize {
    [8, 2, 12, 1, 9, 3, 16][change % 7]
}

async fn connect(name: &str) -> (Client, tokio::task::JoinHandle<()>) {
    let url = std::env::var("TOLLGATE_POSTGRES")
        .expect("TOLLGATE_POSTGRES has the address of a server; ci/with-stores postgres starts one");
    let mut config: tokio_postgres::Config = url.parse().expect("the address of a server");
    config.application_name(name);
    let (client, connection) = config.connect(NoTls).await.expect("the server admits a session");
    let driver = tokio::spawn(async move {
        connection.await.expect("the connection lasts as long as its client");
    });
    (client, driver)
}

async fn number(client: &Client, sql: &str) -> usize {
    let rows = client.simple_query(sql).await.expect("the server answers");
    let number = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0).and_then(|number| number.parse().ok()),
        _ => None,
    });
    number.expect("a number")
}

/// The sessions with this name that the server has.
async fn sessions(client: &Client, name: &str) -> usize {
    let count = format!("select count(*) from pg_stat_activity where application_name = '{name}'");
    number(client, &count).await
}

/// Waits until the server has ended this session, for which it takes its time.
async fn gone(client: &Client, process: usize) {
    let left = format!("select count(*) from pg_stat_activity where pid = {process}");
    while number(client, &left).await > 0 {
        tokio::task::yield_now().await;
    }
}

/// A semaphore whose caps are known, each with the instant from which it was in force: a cap's number counts the changes.
///
/// A waiter is granted its permit under the lock, by a release or a change, and a change waits until granted waiters have looked.
/// So a waiter that looks finds the cap that was in force at its grant.
struct Capped {
    semaphore: Semaphore,
    caps: Mutex<Vec<usize>>,
    looked: AtomicUsize,
}

impl Capped {
    fn mark(&self) -> usize {
        self.caps.lock().unwrap().len() - 1
    }

    /// A permit, and the number of the cap that was in force when it was granted, or an older one that was in force an
    /// instant before.
    async fn acquire(&self) -> (SemaphorePermit<'_>, usize) {
        let before = self.mark();
        let mut waits = pin!(self.semaphore.acquire());
        let (permit, mark) = match futures::poll!(waits.as_mut()) {
            Poll::Ready(permit) => (permit, before),
            Poll::Pending => (waits.await, self.mark()),
        };
        self.looked.fetch_add(1, Ordering::SeqCst);
        (permit.expect("it is open"), mark)
    }

    fn release(&self, permit: SemaphorePermit<'_>) {
        let _caps = self.caps.lock().unwrap();
        self.looked.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
    }

    /// The greatest cap since the one with this number.
    fn greatest_since(&self, mark: usize) -> usize {
        self.caps.lock().unwrap()[mark..].iter().copied().max().unwrap()
    }

    async fn change(&self) {
        loop {
            {
                let mut caps = self.caps.lock().unwrap();
                if caps.len() > CHANGES {
                    return;
                }
                if self.semaphore.in_use() == self.looked.load(Ordering::SeqCst) {
                    let new = cap(caps.len());
                    caps.push(new);
                    return self.semaphore.set_limit(new);
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

/// 64 workers open 600 sessions under a cap that changes 20 times. Each admitted worker counts the sessions in the server: there
/// are never more than the cap that was in force at the admission, or has been since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_never_exceed_the_cap_in_force_at_admission() {
    let capped = Arc::new(Capped {
        semaphore: Semaphore::new(cap(0)),
        caps: Mutex::new(vec![cap(0)]),
        looked: AtomicUsize::new(0),
    });
    let opened = Arc::new(AtomicUsize::new(0));
    let (observer, _driver) = connect("tollgate-observer").await;
    let observer = Arc::new(observer);

    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (capped, opened) = (capped.clone(), opened.clone());
            let observer = observer.clone();
            tokio::spawn(async move {
                loop {
                    let (permit, mark) = capped.acquire().await;
                    let number_of = opened.fetch_add(1, Ordering::SeqCst);
                    if number_of >= SESSIONS {
                        return capped.release(permit);
                    }
                    if number_of % (SESSIONS / (CHANGES + 1)) == 1 {
                        capped.change().await;
                    }
                    let (client, driver) = connect(NAME).await;
                    let process = number(&client, "select pg_backend_pid()").await;
                    let sessions = sessions(&client, NAME).await;
                    let greatest = capped.greatest_since(mark);
                    assert!(
                        sessions <= greatest,
                        "{sessions} sessions are open, and {greatest} may be"
                    );
                    drop(client);
                    driver.await.expect("the session ends");
                    // The permit is held until the server has ended the session.
                    gone(&observer, process).await;
                    capped.release(permit);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("no worker panics");
    }
    let semaphore = &capped.semaphore;
    assert_eq!(capped.mark(), CHANGES);
    assert_eq!((semaphore.in_use(), semaphore.waiting(), semaphore.debt()), (0, 0, 0));
}

/// Under each cap in turn sessions are opened until the next would wait: then the server has as many as the cap, and the one
/// that waits gets on as soon as one has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_sessions_as_the_cap_are_open_before_one_waits() {
    const NAME: &str = "tollgate-cap";
    let semaphore = Semaphore::new(0);
    let (observer, _driver) = connect("tollgate-cap-observer").await;
    for cap in (0..7).map(cap) {
        semaphore.set_limit(cap);
        let mut open = Vec::new();
        while let Ok(permit) = semaphore.try_acquire() {
            open.push((permit, connect(NAME).await));
        }
        assert_eq!(sessions(&observer, NAME).await, cap);
        let mut next = pin!(semaphore.acquire());
        assert!(futures::poll!(next.as_mut()).is_pending());
        assert_eq!(sessions(&observer, NAME).await, cap);
        for (permit, (client, driver)) in open {
            let process = number(&client, "select pg_backend_pid()").await;
            drop(client);
            driver.await.expect("the session ends");
            gone(&observer, process).await;
            drop(permit);
        }
        drop(next.await.expect("it is open"));
        assert_eq!(sessions(&observer, NAME).await, 0);
    }
}
