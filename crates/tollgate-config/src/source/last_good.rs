//! The content of a file or of a key, from version to version.

use crate::file::{ConfigFile, read_bytes};
use crate::kind::Kinds;
use crate::spec::{ConfigError, PolicySpec};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// The content of a file, or of a key of a store, from version to version: each content counts once, and one that is wrong is no version.
/// A source of your own that watches such a content keeps one.
///
/// ```
/// # use tollgate_config::{Kinds, LastGood, PolicySpec};
/// let good = b"[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = 2\n".to_vec();
/// let (spec, mut last_good) = LastGood::<PolicySpec>::first("gate/policy.toml", Ok(good.clone()), &Kinds::new())?;
/// assert_eq!(spec.legs.len(), 1);
/// let gone = || Err("there is no such key".to_owned());
/// assert!(last_good.see(gone()).unwrap().is_err(), "the key was deleted");
/// assert!(last_good.see(gone()).is_none(), "which is reported once");
/// assert!(last_good.see(Ok(good)).is_none(), "that version is in force still");
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
pub struct LastGood<S = PolicySpec> {
    key: Box<str>,
    kinds: Kinds,
    given: Result<Vec<u8>, String>,
    applied: Result<Vec<u8>, String>,
    spec: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for LastGood<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LastGood({:?})", self.key)
    }
}

impl<S: ConfigFile> LastGood<S> {
    /// The first version under `key`, whose name ends in `.toml` or `.json`; the error of `given` says why there is none. Its legs may
    /// be of these kinds as well.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no content, the name of the key ends otherwise, or the content is something else.
    pub fn first(key: &str, given: Result<Vec<u8>, String>, kinds: &Kinds) -> Result<(S, Self), ConfigError> {
        let spec = kinds.parse_content(Path::new(key), &given)?;
        let last_good = Self {
            key: key.into(),
            kinds: kinds.clone(),
            applied: given.clone(),
            given,
            spec: PhantomData,
        };
        Ok((spec, last_good))
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The version of a new `content`, or why it is none; each once.
    pub fn see(&mut self, content: Result<Vec<u8>, String>) -> Option<Result<S, ConfigError>> {
        let is_known = content == self.given;
        self.given = content;
        // Or it is back as it was before it was wrong, or gone.
        if is_known || self.given == self.applied {
            return None;
        }
        let version = self.kinds.parse_content(Path::new(&*self.key), &self.given);
        if version.is_ok() {
            self.applied.clone_from(&self.given);
        }
        Some(version)
    }
}

/// A file of one policy, or of those of a service, that changes while it is in use.
///
/// [`look`](Self::look) reads it when the program says so, such as at a signal. `watch`, of the feature of that name, makes a
/// [`Source`](crate::Source) of it.
///
/// | action | effect |
/// |---|---|
/// | write a new file and rename it | the new content counts |
/// | leave a file that is wrong, delete it or move it | an error, once; the version in force stays |
/// | put it back as it was, or touch it | nothing: only the content counts |
/// | swap a symbolic link above it, as Kubernetes does | the new content counts |
///
/// ```
/// # use tollgate_config::{FileSource, PolicySpec};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("policy.toml");
/// let slots = |limit| format!("[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = {limit}");
/// std::fs::write(&path, slots(4))?;
/// let (spec, mut source) = FileSource::<PolicySpec>::open(&path)?;
/// assert_eq!((spec.legs.len(), source.path()), (1, &*path));
/// assert!(source.look().is_none(), "it is as it was");
/// std::fs::write(&path, slots(5))?;
/// assert!(matches!(source.look(), Some(Ok(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSource<S = PolicySpec> {
    path: PathBuf,
    pub(super) last_good: LastGood<S>,
}

impl<S: ConfigFile> FileSource<S> {
    /// Reads the file, and makes a source of its later versions.
    ///
    /// # Errors
    /// [`ConfigError`]: it cannot be read, or has a mistake.
    pub fn open(path: impl Into<PathBuf>) -> Result<(S, Self), ConfigError> {
        Self::open_with(path, &Kinds::new())
    }

    /// The same with legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn open_with(path: impl Into<PathBuf>, kinds: &Kinds) -> Result<(S, Self), ConfigError> {
        let path = path.into();
        let (spec, last_good) = LastGood::first(&path.display().to_string(), read_bytes(&path), kinds)?;
        Ok((spec, Self { path, last_good }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file now, and blocks on the disk. Gives its version, or why there is none, unless it is as it was.
    pub fn look(&mut self) -> Option<Result<S, ConfigError>> {
        self.last_good.see(read_bytes(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 2\n";

    fn content(text: &str) -> Result<Vec<u8>, String> {
        Ok(text.into())
    }

    fn gone() -> Result<Vec<u8>, String> {
        Err("there is no such key".into())
    }

    #[test]
    fn each_content_counts_once() {
        let (_, mut last_good) =
            LastGood::<PolicySpec>::first("gate/policy.toml", content(GOOD), &Kinds::new()).unwrap();
        assert!(last_good.see(content(GOOD)).is_none());
        let wrong = last_good
            .see(content(&GOOD.replace("limit", "limt")))
            .unwrap()
            .unwrap_err();
        assert_eq!(
            (wrong.file(), wrong.line(), wrong.column()),
            ("gate/policy.toml", Some(4), Some(1))
        );
        assert!(last_good.see(content(&GOOD.replace("limit", "limt"))).is_none());
        assert!(last_good.see(content(GOOD)).is_none(), "it is in force still");
        assert!(last_good.see(gone()).unwrap().is_err());
        assert!(last_good.see(gone()).is_none());
        assert!(last_good.see(content(&GOOD.replace('2', "3"))).unwrap().is_ok());
        assert!(last_good.see(content(GOOD)).unwrap().is_ok());
    }

    #[test]
    fn there_must_be_a_first_version() {
        for (key, text) in [
            ("policy", content(GOOD)),
            ("policy.toml", gone()),
            ("policy.json", content(GOOD)),
        ] {
            let error = LastGood::<PolicySpec>::first(key, text, &Kinds::new())
                .map(drop)
                .unwrap_err();
            assert_eq!(error.file(), key, "{error}");
        }
    }
}
