//! A policy file that changes while it is in use.

use super::{PolicySource, SourceError};
use crate::policy::file::{FileSpec, Format, Kinds, PolicyFileError, read_bytes};
use crate::policy::spec::PolicySpec;
use crate::sync::wake::quietly;
use crate::time::{Clock, Instant, Sleep};
#[cfg(feature = "policy-watch")]
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
#[cfg(feature = "policy-watch")]
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

/// A file of one policy, or of [those of a service](crate::policy::spec::PolicySetSpec), that changes while it is in use.
///
/// Reads it on a thread of its own, every 2 s. If it is [watched](#method.watch), it is read when something happens in its
/// folder, and every 30 s all the same, since some file systems report nothing. A version counts once the file has looked the
/// same twice, the [settling time](Self::settle_for) apart: a file that is still being written does not count as complete. The
/// actions of editors and administrators:
///
/// | action | effect |
/// |---|---|
/// | write a new file and rename it | the new content counts, once it has settled |
/// | truncate the file and write it | the same; the empty file between is not looked at, or has not settled |
/// | leave a file that is wrong | an error, once; the version in force stays |
/// | delete or move the file | an error, once; the version in force stays |
/// | put it back as it was | nothing |
/// | swap a symbolic link above it, as Kubernetes does | the new content counts |
/// | touch it | nothing: only the content counts |
///
/// ```no_run
/// # use tollgate::policy::source::FileSource;
/// # use tollgate::policy::spec::PolicySpec;
/// # use tollgate::Clock;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let (spec, source) = FileSource::<PolicySpec>::open("/etc/gate/policy.toml")?;
/// let policy = spec.build(&Clock::real())?;
/// let followed = policy.clone();
/// tokio::spawn(async move { followed.follow(source, |event| eprintln!("{event}")).await });
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # use tollgate::policy::source::FileSource;
/// # use tollgate::policy::spec::PolicySpec;
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("policy.toml");
/// std::fs::write(&path, "[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = 4")?;
/// let (spec, source) = FileSource::<PolicySpec>::open(&path)?;
/// assert_eq!((spec.legs.len(), source.path()), (1, &*path));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileSource<S = PolicySpec> {
    path: PathBuf,
    format: Format,
    kinds: Kinds,
    /// The content at the latest look, before it has settled.
    unsettled: Option<Seen>,
    /// The instant at which that has settled. Stored here, so that dropping the future of a call forgets nothing.
    settles: Option<Instant>,
    /// A look that has begun.
    reading: Option<Reading<Seen>>,
    /// The latest content that was given, or refused.
    given: Seen,
    /// The latest version that was given.
    applied: Vec<u8>,
    settle: Duration,
    every: Option<Duration>,
    clock: Clock,
    #[cfg(feature = "policy-watch")]
    watch: Option<FolderWatch>,
    spec: PhantomData<fn() -> S>,
}

/// The result of a look at the file: its content, or why there is none.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Content(Vec<u8>),
    Nothing(PolicyFileError),
}

/// The result of a [look](FileSource::look) at the file.
///
/// ```
/// # use tollgate::policy::source::{FileSource, Look};
/// # use tollgate::policy::spec::PolicySpec;
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("policy.toml");
/// let slots = |limit| format!("[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = {limit}");
/// std::fs::write(&path, slots(4))?;
/// let (_spec, mut source) = FileSource::<PolicySpec>::open(&path)?;
/// assert!(matches!(source.look(), Look::Same));
/// std::fs::write(&path, slots(5))?;
/// assert!(matches!(source.look(), Look::Unsettled), "it may still be written");
/// assert!(matches!(source.look(), Look::Version(Ok(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Look<S = PolicySpec> {
    /// It is as it was.
    Same,
    /// It is different, and counts if it is still so at the next look.
    Unsettled,
    /// There is a version, or why there is none.
    Version(Result<S, PolicyFileError>),
}

impl<S: FileSpec> FileSource<S> {
    /// Reads the file, and makes a source of its later versions. Its legs are of the [standard](Kinds::standard) kinds.
    ///
    /// # Errors
    /// [`PolicyFileError`]: it cannot be read, or holds something else.
    pub fn open(path: impl Into<PathBuf>) -> Result<(S, Self), PolicyFileError> {
        Self::open_with(path, &Kinds::standard())
    }

    /// The same for legs of these kinds.
    ///
    /// # Errors
    /// [`PolicyFileError`]: it cannot be read, or holds something else.
    pub fn open_with(path: impl Into<PathBuf>, kinds: &Kinds) -> Result<(S, Self), PolicyFileError> {
        let path = path.into();
        let (bytes, format) = read_bytes(&path).map_err(|error| error.of_file(&path))?;
        let spec = (kinds.parse_bytes(&bytes, format)).map_err(|error| error.of_file(&path))?;
        let source = Self {
            path,
            format,
            kinds: kinds.clone(),
            unsettled: None,
            settles: None,
            reading: None,
            given: Seen::Content(bytes.clone()),
            applied: bytes,
            settle: Duration::from_millis(50),
            every: None,
            clock: Clock::real(),
            #[cfg(feature = "policy-watch")]
            watch: None,
            spec: PhantomData,
        };
        Ok((spec, source))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long a change must have stood to count; 50 ms unless set.
    #[must_use]
    pub fn settle_for(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }

    /// The longest time between two looks; 2 s unless set, and 30 s while the folder is watched.
    #[must_use]
    pub fn look_every(mut self, every: Duration) -> Self {
        self.every = Some(every);
        self
    }

    /// Looks whenever something happens in the folder of the file. The folder is watched rather than the file, since
    /// editors replace the file.
    ///
    /// # Errors
    /// The system's error when the folder cannot be watched: the source goes on unwatched.
    #[cfg(feature = "policy-watch")]
    #[cfg_attr(docsrs, doc(cfg(feature = "policy-watch")))]
    pub fn watch(&mut self) -> Result<(), SourceError> {
        self.watch = Some(FolderWatch::new(&self.path)?);
        Ok(())
    }

    /// Looks at the file now, and blocks on the disk. The source repeats this step; call it to drive the source by hand, the
    /// settling time apart.
    pub fn look(&mut self) -> Look<S> {
        let seen = see(&self.path);
        self.judge(seen)
    }

    fn judge(&mut self, seen: Seen) -> Look<S> {
        self.settles = None;
        if seen == self.given {
            self.unsettled = None;
            return Look::Same;
        }
        if self.unsettled.as_ref() != Some(&seen) {
            self.unsettled = Some(seen);
            return Look::Unsettled;
        }
        self.unsettled = None;
        self.given = seen.clone();
        match seen {
            // It is back as it was before it was wrong, or gone.
            Seen::Content(bytes) if bytes == self.applied => Look::Same,
            Seen::Content(bytes) => {
                let version = self.kinds.parse_bytes(&bytes, self.format);
                let version = version.map_err(|error| error.of_file(&self.path));
                if version.is_ok() {
                    self.applied = bytes;
                }
                Look::Version(version)
            }
            Seen::Nothing(error) => Look::Version(Err(error)),
        }
    }

    /// Reads the file on another thread.
    async fn read(&mut self) -> Seen {
        let path = &self.path;
        let reading = self.reading.get_or_insert_with(|| {
            let path = path.clone();
            Reading::start(move || see(&path))
        });
        let seen = reading.found().await;
        self.reading = None;
        seen
    }

    /// Waits until something has happened, or it is time to look.
    async fn wait(&mut self) {
        #[cfg(feature = "policy-watch")]
        let (watch, unless_set) = (self.watch.as_ref(), if self.watch.is_some() { 30 } else { 2 });
        #[cfg(not(feature = "policy-watch"))]
        let unless_set = 2;
        let every = self.every.unwrap_or(Duration::from_secs(unless_set));
        let timer = Sleep::until(&self.clock, self.clock.after(self.clock.now(), every));
        #[cfg(feature = "policy-watch")]
        if let Some(watch) = watch {
            return watch.changed_or(timer).await;
        }
        timer.await;
    }
}

/// Reads the file at `path`.
fn see(path: &Path) -> Seen {
    match read_bytes(path) {
        Ok((bytes, _)) => Seen::Content(bytes),
        Err(error) => Seen::Nothing(error.of_file(path)),
    }
}

impl<S: FileSpec> PolicySource<S> for FileSource<S> {
    async fn next(&mut self) -> Option<Result<S, SourceError>> {
        loop {
            if let Some(settles) = self.settles {
                Sleep::until(&self.clock, settles).await;
            }
            let seen = self.read().await;
            match self.judge(seen) {
                Look::Version(version) => return Some(version.map_err(SourceError::from)),
                Look::Unsettled => self.settles = Some(self.clock.after(self.clock.now(), self.settle)),
                Look::Same => self.wait().await,
            }
        }
    }
}

impl<S> fmt::Debug for FileSource<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .field("settle", &self.settle)
            .field("every", &self.every)
            .field("settling", &self.settles.is_some())
            .finish_non_exhaustive()
    }
}

/// A read that has begun. It outlives the future that waits for it, and the next one finds it here.
pub(super) struct Reading<T>(Arc<Mutex<Slot<T>>>);

struct Slot<T> {
    found: Option<T>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Reading<T> {
    /// Begins to `read`, on this thread when no other can be started.
    pub(super) fn start(read: impl Fn() -> T + Clone + Send + 'static) -> Self {
        let slot = Arc::new(Mutex::new(Slot {
            found: None,
            waker: None,
        }));
        let (there, reader) = (Arc::clone(&slot), read.clone());
        let thread = thread::Builder::new().name("tollgate-policy".into());
        let started = thread.spawn(move || {
            let found = reader();
            let waker = {
                let mut slot = there.lock();
                slot.found = Some(found);
                slot.waker.take()
            };
            if let Some(waker) = waker {
                quietly(|| waker.wake());
            }
        });
        if started.is_err() {
            slot.lock().found = Some(read());
        }
        Self(slot)
    }

    /// Waits for the result.
    pub(super) async fn found(&self) -> T {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut slot = self.0.lock();
            if let Some(found) = slot.found.take() {
                drop(slot);
                return Poll::Ready(found);
            }
            let old = slot.waker.replace(waker);
            drop(slot);
            drop(old);
            Poll::Pending
        })
        .await
    }
}

/// A folder that is watched, as long as this lives.
#[cfg(feature = "policy-watch")]
pub(super) struct FolderWatch {
    signal: Arc<Mutex<Signal>>,
    _watcher: RecommendedWatcher,
}

#[cfg(feature = "policy-watch")]
#[derive(Default)]
struct Signal {
    changed: bool,
    waker: Option<Waker>,
}

#[cfg(feature = "policy-watch")]
impl FolderWatch {
    /// Watches the folder of `file`.
    pub(super) fn new(file: &Path) -> Result<Self, SourceError> {
        let signal = Arc::new(Mutex::new(Signal::default()));
        let told = Arc::clone(&signal);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A mere read of the folder, as our own.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            let waker = {
                let mut signal = told.lock();
                signal.changed = true;
                signal.waker.take()
            };
            if let Some(waker) = waker {
                quietly(|| waker.wake());
            }
        })?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        watcher.watch(folder.unwrap_or(Path::new(".")), RecursiveMode::NonRecursive)?;
        Ok(Self {
            signal,
            _watcher: watcher,
        })
    }

    /// Waits until something has happened since it was last asked, or `timer` is over.
    pub(super) async fn changed_or(&self, mut timer: Sleep) {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (changed, old) = {
                let mut signal = self.signal.lock();
                let changed = std::mem::take(&mut signal.changed);
                (changed, signal.waker.replace(waker))
            };
            drop(old);
            if changed {
                return Poll::Ready(());
            }
            Pin::new(&mut timer).poll(cx)
        })
        .await;
    }
}
