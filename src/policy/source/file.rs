//! A policy file that changes while it is in use.

use super::{PolicySource, SourceError};
use crate::policy::file::{Format, PolicyFileError, read_bytes};
use crate::policy::spec::PolicySpec;
use crate::time::{Clock, Sleep};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A policy file that changes while it is in use.
///
/// It is looked at every 2 s, or when something happens in its folder if it is watched (`watch`) (and every 30 s
/// all the same, since some file systems say nothing). A version counts once the file has looked the same twice, the
/// [settling time](Self::settle_for) apart: a file that is being written, or written again in two strokes, is not taken for
/// one that is done. What editors and administrators do:
///
/// | they | what happens |
/// |---|---|
/// | write a new file and rename it | the new content counts, once it has settled |
/// | truncate the file and write it | the same; the empty file between is not looked at, or has not settled |
/// | leave a file that is wrong | an error, once; the version in force stays |
/// | delete or move the file | an error, once; the version in force stays |
/// | put it back as it was | nothing |
/// | swap a symbolic link above it, as Kubernetes does | the new content counts |
/// | touch it | nothing: what counts is the content |
///
/// ```no_run
/// # use tollgate::policy::source::FileSource;
/// # use tollgate::Clock;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let (spec, source) = FileSource::open("/etc/gate/policy.toml")?;
/// let policy = spec.build(&Clock::real())?;
/// let followed = policy.clone();
/// tokio::spawn(async move { followed.follow(source, |event| eprintln!("{event}")).await });
/// # Ok(())
/// # }
/// ```
pub struct FileSource {
    path: PathBuf,
    format: Format,
    /// What the file held when it was last looked at, before it has settled.
    unsettled: Option<Seen>,
    /// What was last given, or complained about.
    given: Seen,
    /// The latest version that was given.
    applied: Vec<u8>,
    settle: Duration,
    every: Duration,
    clock: Clock,
    #[cfg(feature = "policy-watch")]
    watch: Option<super::watch::Watch>,
}

/// What a look at the file found: its content, or why there is none.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Content(Vec<u8>),
    Nothing(PolicyFileError),
}

/// What a [look](FileSource::look) at the file came to.
#[derive(Debug)]
#[non_exhaustive]
pub enum Look {
    /// It is as it was.
    Same,
    /// It is different, and counts if it is still so at the next look.
    Unsettled,
    /// There is a version, or why there is none.
    Version(Result<PolicySpec, PolicyFileError>),
}

impl FileSource {
    /// Reads the file, and makes a source of its later versions.
    ///
    /// # Errors
    /// [`PolicyFileError`]: it cannot be read, or is no policy.
    pub fn open(path: impl Into<PathBuf>) -> Result<(PolicySpec, Self), PolicyFileError> {
        let path = path.into();
        let (bytes, format) = read_bytes(&path).map_err(|error| error.of_file(&path))?;
        let spec = PolicySpec::parse_bytes(&bytes, format).map_err(|error| error.of_file(&path))?;
        let source = Self {
            path,
            format,
            unsettled: None,
            given: Seen::Content(bytes.clone()),
            applied: bytes,
            settle: Duration::from_millis(50),
            every: Duration::from_secs(2),
            clock: Clock::real(),
            #[cfg(feature = "policy-watch")]
            watch: None,
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

    /// How often it is looked at although nothing is known to have happened; 2 s unless set, 30 s once it is watched.
    #[must_use]
    pub fn look_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Looks whenever something happens in the folder of the file. The folder is watched rather than the file, since
    /// editors replace the file.
    ///
    /// # Errors
    /// What the system says when it cannot be watched: the source goes on unwatched.
    #[cfg(feature = "policy-watch")]
    #[cfg_attr(docsrs, doc(cfg(feature = "policy-watch")))]
    pub fn watch(&mut self) -> Result<(), SourceError> {
        self.watch = Some(super::watch::Watch::new(&self.path)?);
        self.every = Duration::from_secs(30);
        Ok(())
    }

    /// Looks at the file now. This is the step that the source repeats; call it to drive the source by hand.
    pub fn look(&mut self) -> Look {
        let seen = match read_bytes(&self.path) {
            Ok((bytes, _)) => Seen::Content(bytes),
            Err(error) => Seen::Nothing(error.of_file(&self.path)),
        };
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
                let version = PolicySpec::parse_bytes(&bytes, self.format).map_err(|error| error.of_file(&self.path));
                if version.is_ok() {
                    self.applied = bytes;
                }
                Look::Version(version)
            }
            Seen::Nothing(error) => Look::Version(Err(error)),
        }
    }

    /// Waits until something has happened, or it is time to look.
    async fn wait(&mut self) {
        let timer = Sleep::until(&self.clock, self.clock.after(self.clock.now(), self.every));
        #[cfg(feature = "policy-watch")]
        if let Some(watch) = &self.watch {
            return watch.changed_or(timer).await;
        }
        timer.await;
    }
}

impl PolicySource for FileSource {
    async fn next(&mut self) -> Option<Result<PolicySpec, SourceError>> {
        loop {
            match self.look() {
                Look::Version(version) => return Some(version.map_err(SourceError::from)),
                Look::Unsettled => {
                    let settled = self.clock.after(self.clock.now(), self.settle);
                    Sleep::until(&self.clock, settled).await;
                }
                Look::Same => self.wait().await,
            }
        }
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .field("settle", &self.settle)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}
