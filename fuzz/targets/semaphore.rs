//! A semaphore against a sequential reference: lists that are searched from end to end, written from the docs alone. Whatever a program
//! does, both agree on each caller: whether it is admitted, at once or in turn, and which error it gets.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{AcquireError, Semaphore, SemaphorePermit, TryAcquireError};

/// The operations on both.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Join(u32),
    Try(u32),
    Poll(usize),
    Leave(usize),
    Release(usize),
    Forget(usize),
    Split(usize),
    Merge(usize),
    SetLimit(usize),
    AddPermits(usize),
    ForgetPermits(usize),
    Watch,
    Unwatch(usize),
    Close,
}

impl Op {
    pub(crate) fn decode([which, a, _]: [u8; 3]) -> Self {
        let at = usize::from(a);
        match which % 53 {
            0..12 => Self::Join(u32::from(a % 4)),
            12..16 => Self::Try(u32::from(1 + a % 3)),
            16..24 => Self::Poll(at),
            24..29 => Self::Leave(at),
            29..41 => Self::Release(at),
            41 => Self::Forget(at),
            42 => Self::Split(at),
            43 => Self::Merge(at),
            44..47 => Self::SetLimit(at % 7),
            47 => Self::AddPermits(at % 3),
            48 => Self::ForgetPermits(at % 3),
            49 | 50 => Self::Watch,
            51 => Self::Unwatch(at),
            // Rarely: few operations follow it.
            _ if a < 26 => Self::Close,
            _ => Self::Poll(0),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Kind {
    permits: usize,
}

impl Kind {
    pub(crate) fn decode([_, _, _, rest]: [u8; 4]) -> Self {
        Self {
            permits: usize::from(rest / 4 % 5),
        }
    }

    fn build(&self) -> Semaphore {
        Semaphore::new(self.permits)
    }
}

/// The state of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Waits,
    Granted,
    Closed,
}

#[derive(Debug)]
struct Person {
    id: usize,
    n: i64,
    status: Status,
}

/// The reference: every waiter, and every granted one that has not looked, in order of arrival.
struct Reference {
    limit: i64,
    held: i64,
    closed: bool,
    people: Vec<Person>,
}

/// How an attempt to join ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joined {
    Admitted,
    Waits,
    Closed,
}

impl Reference {
    fn new(kind: &Kind) -> Self {
        Self {
            limit: kind.permits as i64,
            held: 0,
            closed: false,
            people: Vec::new(),
        }
    }

    fn free(&self) -> i64 {
        self.limit - self.held
    }

    fn waiting(&self) -> impl Iterator<Item = &Person> {
        self.people.iter().filter(|person| person.status == Status::Waits)
    }

    /// The head of the queue.
    fn head(&self) -> Option<usize> {
        self.waiting().next().map(|person| person.id)
    }

    fn at(&self, id: usize) -> usize {
        self.people.iter().position(|person| person.id == id).unwrap()
    }

    /// Permits have become free, or the head has changed: the head goes on if it fits.
    fn hand_over(&mut self) {
        while let Some(head) = self.head() {
            let at = self.at(head);
            if self.people[at].n > self.free() {
                return;
            }
            self.people[at].status = Status::Granted;
            self.held += self.people[at].n;
        }
    }

    fn is_free(&self, n: i64) -> bool {
        self.head().is_none() && self.free() >= n
    }

    fn try_acquire(&mut self, n: i64) -> Result<(), bool> {
        if self.closed {
            return Err(true);
        }
        if !self.is_free(n) {
            return Err(false);
        }
        self.held += n;
        Ok(())
    }

    fn join(&mut self, id: usize, n: i64) -> Joined {
        if self.closed {
            return Joined::Closed;
        }
        if n == 0 || self.is_free(n) {
            self.held += n;
            return Joined::Admitted;
        }
        let status = Status::Waits;
        self.people.push(Person { id, n, status });
        Joined::Waits
    }

    /// A waiter looks.
    fn look(&mut self, id: usize) -> Status {
        let at = self.at(id);
        let (status, n) = (self.people[at].status, self.people[at].n);
        let seen = match status {
            Status::Granted if self.closed => Status::Closed,
            status => status,
        };
        if seen != Status::Waits {
            self.people.remove(at);
        }
        if status == Status::Granted && seen == Status::Closed {
            self.release(n);
        }
        seen
    }

    fn leave(&mut self, id: usize) {
        let person = self.people.remove(self.at(id));
        match person.status {
            Status::Granted => self.release(person.n),
            _ => self.hand_over(),
        }
    }

    fn release(&mut self, n: i64) {
        self.held -= n;
        self.hand_over();
    }

    fn forget(&mut self, n: i64) {
        self.held -= n;
        self.limit = (self.limit - n).max(0);
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit as i64;
        self.hand_over();
    }

    fn forget_permits(&mut self, n: i64) -> i64 {
        if self.head().is_some() {
            return 0;
        }
        let gone = self.free().clamp(0, n);
        self.limit -= gone;
        gone
    }

    fn close(&mut self) {
        self.closed = true;
        for person in &mut self.people {
            if person.status == Status::Waits {
                person.status = Status::Closed;
            }
        }
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future with its name, and how often it was woken since it was polled last. It is polled by two tasks in turn.
struct Task<'a, T> {
    id: usize,
    n: i64,
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    counts: [Arc<Count>; 2],
}

impl<'a, T> Task<'a, T> {
    fn new(id: usize, n: i64, future: impl Future<Output = T> + 'a) -> Self {
        Self {
            id,
            n,
            future: Box::pin(future),
            counts: Default::default(),
        }
    }

    fn poll(&mut self) -> Poll<T> {
        self.counts.swap(0, 1);
        self.counts[0].0.store(0, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.counts[0]));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn woken(&self) -> bool {
        self.counts[0].0.load(Ordering::SeqCst) > 0
    }
}

type Acquired<'a> = Result<SemaphorePermit<'a>, AcquireError>;

/// Both, side by side.
struct Pair<'a> {
    semaphore: &'a Semaphore,
    reference: Reference,
    waiting: Vec<Task<'a, Acquired<'a>>>,
    held: Vec<SemaphorePermit<'a>>,
    /// The watchers, and whether no permit was held since.
    watching: Vec<(Task<'a, ()>, bool)>,
}

fn nth<T>(list: &[T], at: usize) -> Option<usize> {
    (!list.is_empty()).then(|| at % list.len())
}

impl<'a> Pair<'a> {
    fn step(&mut self, id: usize, op: Op) {
        match op {
            Op::Join(n) => self.join(id, n),
            Op::Try(n) => {
                let found = self.semaphore.try_acquire_many(n);
                let expected = self.reference.try_acquire(i64::from(n));
                let told = found
                    .as_ref()
                    .map(|_| ())
                    .map_err(|error| *error == TryAcquireError::Closed);
                assert_eq!(told, expected);
                self.held.extend(found);
            }
            Op::Poll(at) => {
                if let Some(at) = nth(&self.waiting, at) {
                    self.look(at);
                }
            }
            Op::Leave(at) => {
                if let Some(at) = nth(&self.waiting, at) {
                    let task = self.waiting.remove(at);
                    self.reference.leave(task.id);
                }
            }
            Op::Release(at) => {
                if let Some(at) = nth(&self.held, at) {
                    let permit = self.held.swap_remove(at);
                    self.reference.release(permit.num_permits() as i64);
                }
            }
            Op::Forget(at) => {
                if let Some(at) = nth(&self.held, at) {
                    let permit = self.held.swap_remove(at);
                    self.reference.forget(permit.num_permits() as i64);
                    permit.forget();
                }
            }
            Op::Split(at) => {
                if let Some(at) = nth(&self.held, at) {
                    let part = self.held[at].split(1);
                    self.held.extend(part);
                }
            }
            Op::Merge(at) => {
                if let Some(at) = nth(&self.held, at) {
                    let other = self.held.swap_remove(at);
                    match self.held.first_mut() {
                        Some(first) => first.merge(other),
                        None => self.held.push(other),
                    }
                }
            }
            Op::SetLimit(limit) => {
                self.semaphore.set_limit(limit);
                self.reference.set_limit(limit);
            }
            Op::AddPermits(n) => {
                self.semaphore.add_permits(n);
                if n > 0 {
                    let limit = self.reference.limit as usize;
                    self.reference.set_limit(limit + n);
                }
            }
            Op::ForgetPermits(n) => {
                let gone = self.semaphore.forget_permits(n) as i64;
                assert_eq!(gone, self.reference.forget_permits(n as i64));
            }
            Op::Watch => self.watch(id),
            Op::Unwatch(at) => {
                if let Some(at) = nth(&self.watching, at) {
                    self.watching.remove(at);
                }
            }
            Op::Close => {
                self.semaphore.close();
                self.reference.close();
            }
        }
        self.compare();
    }

    fn join(&mut self, id: usize, n: u32) {
        let mut task = Task::new(id, i64::from(n), self.semaphore.acquire_many(n));
        let expected = self.reference.join(id, i64::from(n));
        let found = match task.poll() {
            Poll::Ready(Ok(permit)) => {
                self.held.push(permit);
                Joined::Admitted
            }
            Poll::Ready(Err(_)) => Joined::Closed,
            Poll::Pending => {
                self.waiting.push(task);
                Joined::Waits
            }
        };
        assert_eq!(found, expected);
    }

    fn look(&mut self, at: usize) {
        let found = match self.waiting[at].poll() {
            Poll::Pending => Status::Waits,
            Poll::Ready(Ok(permit)) => {
                self.held.push(permit);
                Status::Granted
            }
            Poll::Ready(Err(_)) => Status::Closed,
        };
        assert_eq!(found, self.reference.look(self.waiting[at].id));
        if found != Status::Waits {
            self.waiting.remove(at);
        }
    }

    fn watch(&mut self, id: usize) {
        let mut task: Task<'a, ()> = Task::new(id, 0, self.semaphore.until_idle());
        let come = self.reference.held == 0;
        assert_eq!(task.poll().is_ready(), come);
        if !come {
            self.watching.push((task, false));
        }
    }

    /// The observable state of both is the same, and no waiter sleeps that should have been woken.
    fn compare(&mut self) {
        let (semaphore, reference) = (self.semaphore, &self.reference);
        let waiting = reference.waiting().count();
        assert_eq!(semaphore.waiting(), waiting);
        assert_eq!(semaphore.limit() as i64, reference.limit);
        assert_eq!(semaphore.in_use() as i64, reference.held);
        assert_eq!(semaphore.debt() as i64, (-reference.free()).max(0));
        let unreserved = if waiting == 0 { reference.free().max(0) } else { 0 };
        assert_eq!(semaphore.available_permits() as i64, unreserved);
        assert_eq!(semaphore.is_closed(), reference.closed);
        for task in &self.waiting {
            let ended = reference.people[reference.at(task.id)].status != Status::Waits;
            let due = reference.head() == Some(task.id) && task.n <= reference.free();
            assert!(task.woken() || !(ended || due), "{} sleeps on", task.id);
        }
        for (task, told) in &mut self.watching {
            *told |= reference.held == 0;
            assert!(task.woken() == *told, "{} watches", task.id);
        }
    }
}

/// Both see the same after every step.
pub(crate) fn run(kind: &Kind, ops: Vec<Op>) {
    let semaphore = kind.build();
    let mut pair = Pair {
        semaphore: &semaphore,
        reference: Reference::new(kind),
        waiting: Vec::new(),
        held: Vec::new(),
        watching: Vec::new(),
    };
    for (id, op) in ops.into_iter().enumerate() {
        pair.step(id, op);
    }
    // Everything comes back.
    while let Some(task) = pair.waiting.pop() {
        pair.reference.leave(task.id);
        drop(task);
        pair.compare();
    }
    while !pair.held.is_empty() {
        pair.step(usize::MAX, Op::Release(0));
    }
    assert_eq!((semaphore.in_use(), semaphore.waiting(), semaphore.debt()), (0, 0, 0));
    assert!(pair.watching.iter_mut().all(|(task, ..)| task.poll().is_ready()));
}
