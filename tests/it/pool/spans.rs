//! A pool's task runs in the tracing span of its submitter.

use futures::{FutureExt, StreamExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{self, Wake, Waker};
use std::time::Duration;
use tokio::task::yield_now;
use tollgate::WorkerPool;
use tollgate::fan_out::fan_out;
use tollgate::pool::TaskPool;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, info, info_span};
use tracing_core::span::Current;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const LONG: Duration = Duration::from_secs(60);

/// Notes in which span each event comes.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Option<&'static str>>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Notes {
    fn on_event(&self, _: &Event<'_>, cx: Context<'_, S>) {
        let span = cx.lookup_current().map(|span| span.name());
        self.0.lock().unwrap().push(span);
    }
}

impl Notes {
    fn taken(&self) -> Vec<Option<&'static str>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn task() {
    info!("first poll");
    yield_now().await;
    info!("second poll");
}

/// Given tasks of each kind, large and small, with a handle and without, then each runs in the span in which it was submitted, and none
/// in that of another.
#[test]
fn a_task_runs_in_the_span_of_its_submitter() {
    let notes = Notes::default();
    let subscriber = tracing_subscriber::registry().with(notes.clone());
    let subscriber = tracing::Dispatch::new(subscriber);
    let _default = tracing::dispatcher::set_default(&subscriber);
    let on_start = {
        let subscriber = subscriber.clone();
        move || std::mem::forget(tracing::dispatcher::set_default(&subscriber))
    };
    let pool = WorkerPool::builder().workers(1).on_start(on_start).build().unwrap();
    let span = info_span!("request");
    let words = [0usize; 9];
    span.in_scope(|| {
        pool.execute(|| info!("small")).unwrap();
        pool.execute(move || info!("large {words:?}")).unwrap();
        assert!(pool.execute_all([|| info!("one of many")]).is_empty());
        pool.run(|| info!("with a handle")).unwrap();
    });
    pool.run(|| info!("outside")).unwrap();
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(
        notes.taken(),
        [Some("request"), Some("request"), Some("request"), Some("request"), None]
    );

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let pool = TaskPool::builder(1).build().unwrap();
        let inside = span.in_scope(|| pool.try_submit(task()).unwrap());
        let outside = pool.try_submit(task()).unwrap();
        inside.await.unwrap();
        outside.await.unwrap();
        assert_eq!(notes.taken(), [Some("request"), Some("request"), None, None]);

        let results = span.in_scope(|| fan_out(0..2, 1).map(|_| task()));
        assert_eq!(results.count().await, 2);
        assert_eq!(notes.taken(), [Some("request"); 4]);
    });
}

/// Notes the spans that are closed.
struct Closed(Arc<Mutex<Vec<&'static str>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Closed {
    fn on_close(&self, id: tracing::Id, cx: Context<'_, S>) {
        let name = cx.span(&id).map(|span| span.name());
        self.0.lock().unwrap().extend(name);
    }
}

/// Given a queued task that is cancelled, then its span is closed at once, although its entry stays in the queue.
#[test]
fn a_cancelled_task_keeps_no_span() {
    let closed = Arc::default();
    let subscriber = tracing_subscriber::registry().with(Closed(Arc::clone(&closed)));
    let _default = tracing::subscriber::set_default(subscriber);
    let worker = Mutex::new(None);
    let pool = WorkerPool::builder().workers(1).spawn_with(move |never| {
        *worker.lock().unwrap() = Some(never);
        Ok(())
    });
    let pool = pool.build().unwrap();
    let handle = info_span!("on a thread").in_scope(|| pool.submit(|| ()).unwrap());
    assert!(handle.cancel());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = runtime.block_on(async { TaskPool::builder(1).build().unwrap() });
    let awaited = info_span!("async").in_scope(|| tasks.try_submit(async {}).unwrap());
    assert!(awaited.cancel());
    assert_eq!(*closed.lock().unwrap(), ["on a thread", "async"]);
}

/// Panics when a span is closed, and when the current span is read, once each while armed.
struct Panics {
    registry: tracing_subscriber::Registry,
    at_close: AtomicBool,
    at_read: Arc<AtomicBool>,
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.registry.enabled(metadata)
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.registry.new_span(span)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        self.registry.record(span, values);
    }
    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.registry.record_follows_from(span, follows);
    }
    fn event(&self, event: &Event<'_>) {
        self.registry.event(event);
    }
    fn enter(&self, span: &Id) {
        self.registry.enter(span);
    }
    fn exit(&self, span: &Id) {
        self.registry.exit(span);
    }
    fn clone_span(&self, span: &Id) -> Id {
        self.registry.clone_span(span)
    }
    fn current_span(&self) -> Current {
        if self.at_read.swap(false, SeqCst) {
            resume_unwind(Box::new("on purpose"));
        }
        self.registry.current_span()
    }
    fn try_close(&self, span: Id) -> bool {
        let closed = self.registry.try_close(span);
        if closed && self.at_close.swap(false, SeqCst) {
            resume_unwind(Box::new("on purpose"));
        }
        closed
    }
}

fn panics(at_close: bool) -> (tracing::Dispatch, Arc<AtomicBool>) {
    let at_read = Arc::new(AtomicBool::new(false));
    let panics = Panics {
        registry: tracing_subscriber::registry(),
        at_close: AtomicBool::new(at_close),
        at_read: Arc::clone(&at_read),
    };
    (tracing::Dispatch::new(panics), at_read)
}

/// Given a task whose span panics when it is closed, then the task ends with its result, and the worker runs the next.
#[test]
fn a_span_that_panics_at_its_end_leaves_the_worker_and_the_result() {
    let (subscriber, _) = panics(true);
    let _default = tracing::dispatcher::set_default(&subscriber);
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    // The task ends after this thread has dropped the span, so the worker closes it.
    let (release, released) = mpsc::channel::<()>();
    let task = move || released.recv().map_or(6, |()| 0);
    let task = info_span!("request").in_scope(|| pool.submit(task).unwrap());
    drop(release);
    assert_eq!(task.join().unwrap(), 6);
    let Ok(next) = pool.submit(|| 7).unwrap().join_timeout(LONG / 6) else {
        panic!("the worker is lost")
    };
    assert_eq!(next.unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((pool.stats().finished, pool.stats().panicked), (2, 0));
}

/// Given a task that is awaited, then its span is closed before its waiter is woken.
#[test]
fn a_span_is_closed_before_the_end_is_told() {
    struct Counts(Arc<Mutex<Vec<&'static str>>>, mpsc::Sender<usize>);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.1.send(self.0.lock().unwrap().len()).unwrap();
        }
    }
    let closed = Arc::default();
    let subscriber = tracing_subscriber::registry().with(Closed(Arc::clone(&closed)));
    let _default = tracing::subscriber::set_default(subscriber);
    let pool = WorkerPool::builder().workers(1).build().unwrap();
    let (release, released) = mpsc::channel::<()>();
    let task = move || _ = released.recv();
    let mut task = info_span!("request").in_scope(|| pool.submit(task).unwrap());
    let (tell, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(Counts(closed, tell)));
    assert!(
        Pin::new(&mut task)
            .poll(&mut task::Context::from_waker(&waker))
            .is_pending()
    );
    drop(release);
    assert_eq!(told.recv_timeout(LONG).unwrap(), 1);
    task.join().unwrap();
}

/// Given a subscriber that panics when a task is submitted, then the task takes no room.
#[test]
fn a_submission_whose_span_cannot_be_read_takes_no_room() {
    let (subscriber, at_read) = panics(false);
    let _default = tracing::dispatcher::set_default(&subscriber);
    let pool = WorkerPool::builder().workers(1).max_queue(1).max_queue_weight(1);
    let worker = Mutex::new(None);
    let pool = pool.spawn_with(move |never| {
        *worker.lock().unwrap() = Some(never);
        Ok(())
    });
    let pool = pool.build().unwrap();
    let fails = |submit: &dyn Fn()| {
        at_read.store(true, SeqCst);
        assert!(catch_unwind(AssertUnwindSafe(submit)).is_err());
        assert!(!at_read.load(SeqCst));
    };
    fails(&|| drop(pool.submit(|| ())));
    fails(&|| drop(pool.submit_async(|| ()).now_or_never()));
    fails(&|| drop(pool.submit_all([|| ()])));
    fails(&|| drop(pool.execute(|| ())));
    fails(&|| drop(pool.execute_all([|| ()])));
    assert!(pool.try_submit(|| ()).is_ok());

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside = runtime.enter();
    let pool = TaskPool::builder(1).max_queue(1).build().unwrap();
    fails(&|| drop(pool.try_submit(async {})));
    fails(&|| drop(pool.submit(async {}).now_or_never()));
    fails(&|| drop(pool.submit_all([async {}]).now_or_never()));
    fails(&|| drop(pool.execute(async {}).now_or_never()));
    assert!(pool.try_submit(async {}).is_ok());
}
