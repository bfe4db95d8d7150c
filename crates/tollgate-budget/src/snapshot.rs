//! Snapshots in a file, by which budgets of one process survive its restart.
//!
//! The file is text: a line with the instant, a line for each limit of a level of which anything is used, and a line with their number.
//! A new file takes the place of the old one at once, so that a crash leaves one of the two.

use crate::budgets::Budgets;
use crate::period::since_1970;
use crate::rule::Limit;
use parking_lot::{Condvar, Mutex};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const HEAD: &str = "tollgate-budget 1";

/// A snapshot that cannot be read, and why.
///
/// ```
/// use tollgate_budget::{Budgets, Limit, Period, Rule};
///
/// let path = std::env::temp_dir().join(format!("no-snapshot-{}", std::process::id()));
/// std::fs::write(&path, "something else").unwrap();
/// let budgets = Budgets::builder().rule(Rule::new("all").limit(Limit::requests(5, Period::Day))).build()?;
/// assert!(budgets.restore(&path).unwrap_err().to_string().ends_with("line 1: no snapshot of budgets"));
/// std::fs::remove_file(&path).unwrap();
/// # Ok::<(), tollgate_budget::BudgetError>(())
/// ```
#[derive(Debug)]
pub struct SnapshotError {
    path: PathBuf,
    line: Option<usize>,
    why: String,
}

impl SnapshotError {
    /// The line, from 1; `None` when the file could not be read.
    pub fn line(&self) -> Option<usize> {
        self.line
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.why)
    }
}

impl std::error::Error for SnapshotError {}

/// What a limit is, but its amount, which may have been changed.
fn name_of(limit: &Limit) -> String {
    let period = limit.period().map(|period| period.to_string());
    format!("{}/{}/{}", limit.measure(), period.unwrap_or_default(), limit.time_zone)
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

fn unescape(text: &str) -> String {
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(next) = chars.next() {
        plain.push(match next {
            '\\' => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some(other) => other,
                None => break,
            },
            other => other,
        });
    }
    plain
}

impl Budgets {
    /// Writes what is used and held into a file, and waits until the disk has it. A crash meanwhile leaves the old file.
    ///
    /// Each level is locked by itself, as briefly as a request locks it.
    ///
    /// # Errors
    /// The file, or the one beside it with `.new` at its end, cannot be written.
    ///
    /// ```
    /// use tollgate::Ask;
    /// use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
    ///
    /// let path = std::env::temp_dir().join(format!("budgets-{}.snapshot", std::process::id()));
    /// let builder = Budgets::builder().rule(
    ///     Rule::new("user").per(["user"]).limit(Limit::cost(OUTPUT, 1_000, Period::Month)),
    /// );
    /// let before = builder.build()?;
    /// let mut meter = before.account(&[("user", "ann")]).reserve(Ask::one().cost(OUTPUT, 900)).unwrap();
    /// meter.extend(OUTPUT, 300).unwrap();
    /// before.save(&path).unwrap();
    ///
    /// // In the next process. What was held counts as used.
    /// let after = builder.build()?;
    /// assert_eq!(after.restore(&path).unwrap(), 1);
    /// let refused = after.account(&[("user", "ann")]).reserve(Ask::one().cost(OUTPUT, 101)).unwrap_err();
    /// assert_eq!(refused.left(), 100);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tollgate_budget::BudgetError>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (path, wall) = (path.as_ref(), since_1970(self.clock().wall()));
        let (mut text, mut lines) = (format!("{HEAD}\t{wall}\n"), 0);
        for level in self.usage() {
            let key: String = level
                .key()
                .fold(String::new(), |key, (_, value)| key + "\t" + &escape(value));
            let used = |limit: &crate::LimitUsage<'_>| limit.used().saturating_add(limit.open());
            for limit in level
                .limits()
                .filter(|limit| limit.limit().period().is_some() && used(limit) > 0)
            {
                let (rule, name) = (escape(level.rule()), escape(&name_of(limit.limit())));
                lines += 1;
                // A text takes it as it is.
                let _ = writeln!(text, "{}\t{rule}\t{name}{key}", used(&limit));
            }
        }
        let _ = writeln!(text, "end\t{lines}");
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        // The new name as well, where folders can be synchronised.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Counts what a file of [`save`](Self::save) says as used, where its period lasts. Call it before the first request. Returns the
    /// number of limits that were found; 0 without a file. Rules and limits that are no more are left out, and amounts may differ.
    ///
    /// What was held by requests that ran counts as used, as far as the period lasts: they may have used it. What was charged after
    /// the snapshot is lost. The units of a rolling span count from now on, so at most a span too long. Calls in flight are not kept.
    ///
    /// # Errors
    /// [`SnapshotError`]: the file cannot be read, or is no whole snapshot. Nothing is counted then.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<usize, SnapshotError> {
        let path = path.as_ref();
        let fail = |line, why: &str| SnapshotError {
            path: path.into(),
            line,
            why: why.into(),
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(fail(None, &error.to_string())),
        };
        let mut lines: Vec<&str> = text.split('\n').collect();
        let wall = lines[0]
            .strip_prefix(HEAD)
            .and_then(|rest| rest.trim().parse::<i128>().ok());
        let wall = wall.ok_or_else(|| fail(Some(1), "no snapshot of budgets"))?;
        // The last line ends the one before it.
        let whole = lines.pop() == Some("")
            && lines.pop().and_then(|end| end.strip_prefix("end\t")?.parse().ok()) == Some(lines.len().wrapping_sub(1));
        if !whole {
            return Err(fail(Some(lines.len() + 1), "the snapshot is not whole"));
        }
        let mut entries = Vec::new();
        for (number, line) in lines.iter().enumerate().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let units = fields[0].parse::<u64>().ok().filter(|_| fields.len() >= 3);
            let units = units.ok_or_else(|| fail(Some(number + 1), "units, a rule and a limit are expected"))?;
            let texts: Vec<String> = fields[1..].iter().map(|field| unescape(field)).collect();
            entries.push((units, texts));
        }
        let found = entries
            .iter()
            .filter(|(units, texts)| self.restore_limit(wall, *units, &texts[0], &texts[1], &texts[2..]));
        Ok(found.count())
    }

    fn restore_limit(&self, wall: i128, units: u64, rule: &str, limit: &str, key: &[String]) -> bool {
        let Some(number) = self.0.rules.iter().position(|other| other.rule.name == rule) else {
            return false;
        };
        let state = &self.0.rules[number];
        let Some(limit) = state.rule.limits.iter().position(|other| name_of(other) == limit) else {
            return false;
        };
        if !state.lasts(limit, wall) {
            return false;
        }
        let level = match key.len() == state.rule.per.len() {
            true => {
                let dimensions = state.rule.per.iter().map(String::as_str);
                let pairs: Vec<_> = dimensions.zip(key.iter().map(String::as_str)).collect();
                self.0.level(number, &pairs)
            }
            // The overflow level; or keys by other dimensions, which are no more.
            false if key.is_empty() => Arc::clone(&self.0.common[number]),
            false => return false,
        };
        let now = self.0.own.now();
        let mut counters = level.lock();
        let at = level.advance(&mut counters, now).max(now);
        counters[limit].take(units);
        counters[limit].close(at, units);
        true
    }

    /// Saves now and then on a thread of its own, until the answer is dropped, and once more then.
    ///
    /// **What may be lost** by a crash, of the process or the machine: what was charged in the last `interval`, and while the last
    /// file was written. Each file is on the disk (`fsync`) before it counts.
    ///
    /// # Errors
    /// The first file cannot be written.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_budget::{Budgets, Limit, Period, Rule};
    ///
    /// let path = std::env::temp_dir().join(format!("budgets-kept-{}.snapshot", std::process::id()));
    /// let budgets = Budgets::builder().rule(Rule::new("all").limit(Limit::requests(5, Period::Month))).build()?;
    /// budgets.restore(&path).unwrap();
    /// let saver = budgets.save_every(&path, Duration::from_secs(1)).unwrap();
    /// drop(budgets.account(&[]).reserve(1));
    /// assert!(saver.last_error().is_none());
    /// drop(saver);
    /// assert!(std::fs::read_to_string(&path).unwrap().contains("1\tall\trequests/month/UTC"));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tollgate_budget::BudgetError>(())
    /// ```
    pub fn save_every(&self, path: impl Into<PathBuf>, interval: Duration) -> io::Result<BudgetSaver> {
        let (budgets, path) = (self.clone(), path.into());
        budgets.save(&path)?;
        let shared = Arc::new(SaverState::default());
        let state = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("budgets".into()).spawn(move || {
            loop {
                let mut stopped = state.stopped.lock();
                if !*stopped {
                    state.stop.wait_for(&mut stopped, interval);
                }
                let last = *stopped;
                drop(stopped);
                *state.error.lock() = budgets.save(&path).err().map(|error| error.to_string());
                if last {
                    return;
                }
            }
        })?;
        Ok(BudgetSaver {
            shared,
            thread: Some(thread),
        })
    }
}

#[derive(Debug, Default)]
struct SaverState {
    stopped: Mutex<bool>,
    stop: Condvar,
    error: Mutex<Option<String>>,
}

/// The thread of [`Budgets::save_every`]. Dropped, it saves once more and ends; the drop waits for that.
///
/// ```
/// # use tollgate_budget::{Budgets, Limit, Period, Rule};
/// # use std::time::Duration;
/// let folder = std::env::temp_dir().join(format!("tollgate-budget-saver-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let calls = Rule::new("user").per(["user"]).limit(Limit::requests(5, Period::Day));
/// let budgets = Budgets::builder().rule(calls.clone()).build()?;
/// let path = folder.join("budgets");
/// let saver = budgets.save_every(&path, Duration::from_secs(60))?;
/// drop(budgets.account(&[("user", "ann")]).reserve(2)?);
/// assert_eq!(saver.last_error(), None);
/// drop(saver); // Saves once more.
/// let restarted = Budgets::builder().rule(calls).build()?;
/// assert_eq!(restarted.restore(&path)?, 1);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it ends the saving"]
pub struct BudgetSaver {
    shared: Arc<SaverState>,
    thread: Option<JoinHandle<()>>,
}

impl BudgetSaver {
    /// Why the last file could not be written; `None` if it was.
    pub fn last_error(&self) -> Option<String> {
        self.shared.error.lock().clone()
    }
}

impl Drop for BudgetSaver {
    fn drop(&mut self) {
        *self.shared.stopped.lock() = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            // It calls no user's code that could panic.
            let _ = thread.join();
        }
    }
}
