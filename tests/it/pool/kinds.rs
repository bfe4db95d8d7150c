//! One face for pools of threads and pools of async tasks, for tests of what both do. Tasks are futures: a thread blocks on its task.

use futures::future::{BoxFuture, FutureExt};
use std::fmt::Display;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate::WorkerPool;
use tollgate::pool::GroupError;
use tollgate::pool::{
    Group, JoinHandle, PoolError, PoolStats, Priority, ShutdownReport, StopFlag, SubmitError, TaskError, TaskHandle,
    TaskPool, Unstarted,
};

pub(crate) const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Threads,
    Tasks,
}

/// Something of a pool of threads, or the same of a pool of async tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Both<A, B> {
    Threads(A),
    Tasks(B),
}

use Both::{Tasks, Threads};

pub(crate) type Pool = Both<WorkerPool, TaskPool>;
pub(crate) type Handle<T> = Both<JoinHandle<T>, TaskHandle<T>>;
pub(crate) type Back<T> = SubmitError<BoxFuture<'static, T>>;

/// Builds a pool of a kind, with a limit and these calls of its builder.
macro_rules! pool {
    ($kind:expr, $limit:expr $(, $set:ident($to:expr))* $(,)?) => {
        match $kind {
            $crate::pool::kinds::Kind::Threads => $crate::pool::kinds::Both::Threads(
                tollgate::WorkerPool::builder().workers($limit)$(.$set($to))*.build().unwrap(),
            ),
            $crate::pool::kinds::Kind::Tasks => $crate::pool::kinds::Both::Tasks(
                tollgate::pool::TaskPool::builder($limit)$(.$set($to))*.build().unwrap(),
            ),
        }
    };
}
pub(crate) use pool;

/// The same expression for either.
macro_rules! each {
    ($it:expr, $name:ident => $same:expr) => {
        match $it {
            Threads($name) => $same,
            Tasks($name) => $same,
        }
    };
}

/// The pool with an option of its tasks. The common ones are methods as well.
macro_rules! with {
    ($pool:expr, $option:ident($to:expr)) => {
        match &$pool {
            $crate::pool::kinds::Both::Threads(pool) => $crate::pool::kinds::Both::Threads(pool.$option($to)),
            $crate::pool::kinds::Both::Tasks(pool) => $crate::pool::kinds::Both::Tasks(pool.$option($to)),
        }
    };
}
pub(crate) use with;

/// Wakes the thread of one `block_on`, which may run within another on the same thread.
struct Unparks(Thread, AtomicBool);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        // Release, for the swap of the thread that it wakes.
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(task: F) -> F::Output {
    let woken = Arc::new(Unparks(thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut task = pin!(task);
    loop {
        // Acquire: what was done before the wake-up is seen.
        while !woken.1.swap(false, Ordering::Acquire) {
            thread::park();
        }
        if let Poll::Ready(output) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
}

fn closure<F: Future>(task: F) -> impl FnOnce() -> F::Output {
    move || block_on(task)
}

fn back<T: 'static, F: FnOnce() -> T + Send + 'static>(rejected: SubmitError<F>) -> Back<T> {
    let SubmitError { task, reason, .. } = rejected;
    Back {
        task: Box::pin(async { task() }),
        reason,
    }
}

fn boxed<F: Future + Send + 'static>(rejected: SubmitError<F>) -> Back<F::Output> {
    let SubmitError { task, reason, .. } = rejected;
    Back {
        task: Box::pin(task),
        reason,
    }
}

impl Pool {
    pub(crate) fn priority(&self, priority: Priority) -> Self {
        with!(self, priority(priority))
    }

    pub(crate) async fn execute(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Back<()>> {
        match self {
            Threads(pool) => pool.execute(closure(task)).map_err(back),
            Tasks(pool) => pool.execute(task).await.map_err(boxed),
        }
    }

    pub(crate) async fn run<F>(&self, task: F) -> Result<F::Output, TaskError>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(pool) => pool.run(closure(task)),
            Tasks(pool) => pool.run(task).await,
        }
    }

    pub(crate) fn set_limit(&self, limit: usize) -> Result<(), PoolError> {
        each!(self, pool => pool.set_limit(limit))
    }

    pub(crate) fn close(&self) {
        each!(self, pool => pool.close());
    }

    pub(crate) fn stats(&self) -> PoolStats {
        each!(self, pool => pool.stats())
    }

    pub(crate) async fn wait_idle(&self) -> bool {
        match self {
            Threads(pool) => pool.wait_idle(),
            Tasks(pool) => pool.wait_idle().await,
        }
    }

    pub(crate) async fn wait_idle_timeout(&self, patience: Duration) -> bool {
        match self {
            Threads(pool) => pool.wait_idle_timeout(patience),
            Tasks(pool) => pool.wait_idle_timeout(patience).await,
        }
    }

    pub(crate) async fn shutdown(
        &self,
        deadline: Duration,
    ) -> Both<ShutdownReport<tollgate::pool::Threads<'static>>, ShutdownReport<tollgate::pool::Tasks>> {
        match self {
            Threads(pool) => Threads(pool.shutdown(deadline)),
            Tasks(pool) => Tasks(pool.shutdown(deadline).await),
        }
    }

    pub(crate) fn abort(
        &self,
    ) -> Both<ShutdownReport<tollgate::pool::Threads<'static>>, ShutdownReport<tollgate::pool::Tasks>> {
        match self {
            Threads(pool) => Threads(pool.abort()),
            Tasks(pool) => Tasks(pool.abort()),
        }
    }

    /// Ends the pool, which leaves nothing.
    pub(crate) async fn ends_clean(&self) {
        assert!(self.shutdown(LONG).await.is_clean());
        let stats = self.stats();
        assert_eq!((stats.threads, stats.queued, stats.unfinished), (0, 0, 0));
    }
}

/// Submission.
impl Pool {
    pub(crate) fn group<T: Send + 'static, E: Send + 'static>(
        &self,
    ) -> Both<Group<tollgate::pool::Threads<'static>, T, E>, Group<tollgate::pool::Tasks, T, E>> {
        match self {
            Threads(submit) => Threads(submit.group()),
            Tasks(submit) => Tasks(submit.group()),
        }
    }

    pub(crate) fn weight(&self, weight: u32) -> Self {
        with!(self, weight(weight))
    }

    pub(crate) fn deadline(&self, within: Duration) -> Self {
        with!(self, deadline(within))
    }

    pub(crate) async fn submit<F>(&self, task: F) -> Result<Handle<F::Output>, Back<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(submit) => submit.submit(closure(task)).map(Threads).map_err(back),
            Tasks(submit) => submit.submit(task).await.map(Tasks).map_err(boxed),
        }
    }

    /// Waits for room without blocking the thread.
    pub(crate) async fn submit_async<F>(&self, task: F) -> Result<Handle<F::Output>, Back<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(submit) => submit.submit_async(closure(task)).await.map(Threads).map_err(back),
            Tasks(submit) => submit.submit(task).await.map(Tasks).map_err(boxed),
        }
    }

    /// Waits for room on a thread of its own.
    pub(crate) fn submit_blocking<F>(&self, task: F) -> Result<Handle<F::Output>, Back<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(submit) => submit.submit(closure(task)).map(Threads).map_err(back),
            Tasks(submit) => submit.submit_blocking(task).map(Tasks).map_err(boxed),
        }
    }

    pub(crate) async fn submit_timeout<F>(
        &self,
        task: F,
        patience: Duration,
    ) -> Result<Handle<F::Output>, Back<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(submit) => submit
                .submit_timeout(closure(task), patience)
                .map(Threads)
                .map_err(back),
            Tasks(submit) => submit.submit_timeout(task, patience).await.map(Tasks).map_err(boxed),
        }
    }

    pub(crate) fn try_submit<F>(&self, task: F) -> Result<Handle<F::Output>, Back<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(submit) => submit.try_submit(closure(task)).map(Threads).map_err(back),
            Tasks(submit) => submit.try_submit(task).map(Tasks).map_err(boxed),
        }
    }

    #[allow(clippy::type_complexity)]
    pub(crate) async fn submit_all<F>(
        &self,
        tasks: impl IntoIterator<Item = F>,
    ) -> (Vec<Handle<F::Output>>, Vec<Back<F::Output>>)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self {
            Threads(submit) => {
                let (handles, rejected) = submit.submit_all(tasks.into_iter().map(closure));
                (
                    handles.into_iter().map(Threads).collect(),
                    rejected.into_iter().map(back).collect(),
                )
            }
            Tasks(submit) => {
                let (handles, rejected) = submit.submit_all(tasks).await;
                (
                    handles.into_iter().map(Tasks).collect(),
                    rejected.into_iter().map(boxed).collect(),
                )
            }
        }
    }

    pub(crate) async fn execute_all<F>(&self, tasks: impl IntoIterator<Item = F>) -> Vec<Back<()>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match self {
            Threads(submit) => {
                let rejected = submit.execute_all(tasks.into_iter().map(closure));
                rejected.into_iter().map(back).collect()
            }
            Tasks(submit) => submit.execute_all(tasks).await.into_iter().map(boxed).collect(),
        }
    }
}

impl<T: Send + 'static> Handle<T> {
    /// Blocks the thread of a task of threads.
    pub(crate) async fn join(self) -> Result<T, TaskError> {
        match self {
            Threads(handle) => handle.join(),
            Tasks(handle) => handle.await,
        }
    }

    pub(crate) async fn join_timeout(self, patience: Duration) -> Result<Result<T, TaskError>, Self> {
        match self {
            Threads(handle) => handle.join_timeout(patience).map_err(Threads),
            Tasks(handle) => handle.join_timeout(patience).await.map_err(Tasks),
        }
    }

    pub(crate) fn join_blocking(self) -> Result<T, TaskError> {
        match self {
            Threads(handle) => handle.join(),
            Tasks(handle) => tollgate::Clock::real().run(handle),
        }
    }

    pub(crate) fn try_join(self) -> Result<Result<T, TaskError>, Self> {
        match self {
            Threads(handle) => handle.try_join().map_err(Threads),
            Tasks(handle) => handle.try_join().map_err(Tasks),
        }
    }

    pub(crate) fn cancel(&self) -> bool {
        each!(self, handle => handle.cancel())
    }

    pub(crate) fn is_finished(&self) -> bool {
        each!(self, handle => handle.is_finished())
    }
}

impl<A: Future + Unpin, B: Future<Output = A::Output> + Unpin> Future for Both<A, B> {
    type Output = A::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        each!(&mut *self, future => Pin::new(future).poll(cx))
    }
}

impl<T: Send + 'static, E: Send + 'static>
    Both<Group<tollgate::pool::Threads<'static>, T, E>, Group<tollgate::pool::Tasks, T, E>>
{
    pub(crate) fn keep_going(self) -> Self {
        match self {
            Threads(group) => Threads(group.keep_going()),
            Tasks(group) => Tasks(group.keep_going()),
        }
    }

    pub(crate) fn limit(self, limit: usize) -> Result<Self, PoolError> {
        Ok(match self {
            Threads(group) => Threads(group.limit(limit)?),
            Tasks(group) => Tasks(group.limit(limit)?),
        })
    }

    pub(crate) fn stop_flag(&self) -> StopFlag {
        each!(self, group => group.stop_flag())
    }

    pub(crate) async fn submit<F>(&mut self, task: F) -> Result<usize, Back<Result<T, E>>>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        match self {
            Threads(group) => group.submit(closure(task)).map_err(back),
            Tasks(group) => group.submit(task).await.map_err(boxed),
        }
    }

    pub(crate) fn len(&self) -> usize {
        each!(self, group => group.outstanding())
    }

    pub(crate) fn cancel(&mut self) {
        each!(self, group => group.cancel());
    }

    pub(crate) async fn next(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        match self {
            Threads(group) => group.next(),
            Tasks(group) => group.next().await,
        }
    }

    /// The same without blocking the thread.
    pub(crate) async fn next_async(&mut self) -> Option<(usize, Result<T, GroupError<E>>)> {
        match self {
            Threads(group) => group.next_async().await,
            Tasks(group) => group.next().await,
        }
    }

    pub(crate) async fn join(self) -> Result<Vec<T>, GroupError<E>> {
        match self {
            Threads(group) => group.join(),
            Tasks(group) => group.join().await,
        }
    }

    pub(crate) async fn join_async(self) -> Result<Vec<T>, GroupError<E>> {
        match self {
            Threads(group) => group.join_async().await,
            Tasks(group) => group.join().await,
        }
    }

    pub(crate) async fn join_all(self) -> Vec<Result<T, GroupError<E>>> {
        match self {
            Threads(group) => group.join_all(),
            Tasks(group) => group.join_all().await,
        }
    }
}

impl Both<ShutdownReport<tollgate::pool::Threads<'static>>, ShutdownReport<tollgate::pool::Tasks>> {
    pub(crate) fn is_clean(&self) -> bool {
        each!(self, report => report.is_clean())
    }

    /// How many have not started, and how many run.
    pub(crate) fn left(&self) -> (usize, usize) {
        each!(self, report => (report.unstarted.len(), report.running))
    }

    pub(crate) async fn wait(&self) -> bool {
        match self {
            Threads(report) => report.wait(),
            Tasks(report) => report.wait().await,
        }
    }

    /// The same in a task of the pool, which does not wait.
    pub(crate) fn wait_inside(&self) -> bool {
        match self {
            Threads(report) => report.wait(),
            Tasks(report) => report.wait().now_or_never().expect("it waits for itself"),
        }
    }

    pub(crate) async fn wait_timeout(&self, patience: Duration) -> bool {
        match self {
            Threads(report) => report.wait_timeout(patience),
            Tasks(report) => report.wait_timeout(patience).await,
        }
    }

    /// Takes the first of those that have not started.
    pub(crate) fn first(
        &mut self,
    ) -> Both<Unstarted<tollgate::pool::Threads<'static>>, Unstarted<tollgate::pool::Tasks>> {
        match self {
            Threads(report) => Threads(report.unstarted.remove(0)),
            Tasks(report) => Tasks(report.unstarted.remove(0)),
        }
    }
}

impl Both<Unstarted<tollgate::pool::Threads<'static>>, Unstarted<tollgate::pool::Tasks>> {
    pub(crate) fn weight(&self) -> u32 {
        each!(self, task => task.weight())
    }

    pub(crate) fn priority(&self) -> Priority {
        each!(self, task => task.priority())
    }

    pub(crate) async fn run(self) -> bool {
        match self {
            Threads(task) => task.run(),
            Tasks(task) => task.run().await,
        }
    }
}

/// Keeps a slot busy until it is let go.
pub(crate) struct Busy(oneshot::Sender<()>, Handle<()>);

impl Busy {
    pub(crate) async fn on(pool: &Pool) -> Self {
        let (start, started) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let task = async move {
            start.send(()).unwrap();
            let _ = released.await;
        };
        let handle = pool.submit(task).await.unwrap();
        started.await.unwrap();
        Self(release, handle)
    }

    /// Lets it go, without a wait for its end.
    pub(crate) fn release(self) -> Handle<()> {
        drop(self.0);
        self.1
    }

    pub(crate) async fn end(self) {
        self.release().join().await.unwrap();
    }
}

/// Panics when it is dropped.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("dropped"));
    }
}

/// Lets others run until something is so. The watchdog bounds it.
pub(crate) async fn until(done: impl Fn() -> bool) {
    while !done() {
        tokio::task::yield_now().await;
        thread::yield_now();
    }
}

/// Lets async tasks run until all wait, and threads for a while.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
        thread::yield_now();
    }
}

/// Runs a program on a thread of its own, and fails when that stands still. The watchdog yields as programs do, so that a busy machine
/// delays both.
pub(crate) fn watched<T: Send + 'static>(name: impl Display, program: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || tell.send(program()));
    for _ in 0..20_000 {
        match told.recv_timeout(Duration::from_millis(1)) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) => (0..3).for_each(|_| thread::yield_now()),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                eprintln!("{name} has failed");
                resume_unwind(thread.join().expect_err("it has told nothing"))
            }
        }
    }
    panic!("{name} stands still")
}

/// Runs a program of a test: where pools are of async tasks, on a current-thread runtime.
pub(crate) fn watched_on<F: Future<Output = ()>>(
    kind: Kind,
    name: impl Display,
    program: impl FnOnce(Kind) -> F + Send + 'static,
) {
    watched(name, move || match kind {
        Kind::Threads => block_on(program(kind)),
        Kind::Tasks => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(program(kind));
        }
    });
}
