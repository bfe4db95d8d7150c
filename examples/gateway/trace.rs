//! Reads a trace of LLM requests: `TIMESTAMP,ContextTokens,GeneratedTokens`, gzipped, in order of time.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

/// One request of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds since 1970.
    pub at: u64,
    pub context: u64,
    pub generated: u64,
}

/// An error in a trace, with its position.
#[derive(Debug)]
pub struct TraceError {
    path: PathBuf,
    line: Option<u64>,
    what: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for TraceError {}

pub fn read(path: &Path) -> Result<Vec<Request>, TraceError> {
    let fail = |line, what: String| TraceError {
        path: path.into(),
        line,
        what,
    };
    let file = File::open(path).map_err(|error| fail(None, error.to_string()))?;
    let mut reader = csv::Reader::from_reader(flate2::read::GzDecoder::new(file));
    let header = reader
        .headers()
        .map_err(|error| fail(Some(1), error.to_string()))?
        .clone();
    let column = |name: &str| {
        let found = header.iter().position(|title| title.trim() == name);
        found.ok_or_else(|| fail(Some(1), format!("the column `{name}` is missing")))
    };
    let (at, context, generated) = (
        column("TIMESTAMP")?,
        column("ContextTokens")?,
        column("GeneratedTokens")?,
    );
    let mut requests: Vec<Request> = Vec::new();
    for (record, line) in reader.records().zip(2..) {
        let line = Some(line);
        let record = record.map_err(|error| fail(line, error.to_string()))?;
        let number = |column: usize| {
            let text = record[column].trim();
            text.parse::<u32>()
                .map(u64::from)
                .map_err(|_| fail(line, format!("`{text}` is no number of tokens")))
        };
        let stamp = record[at].trim();
        let request = Request {
            at: instant(stamp).ok_or_else(|| fail(line, format!("`{stamp}` is no time")))?,
            context: number(context)?,
            generated: number(generated)?,
        };
        if requests.last().is_some_and(|last| last.at > request.at) {
            return Err(fail(line, format!("`{stamp}` is earlier than the line before")));
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err(fail(None, "it holds no requests".into()));
    }
    Ok(requests)
}

/// `2023-11-16 18:17:03.9799600` as nanoseconds since 1970.
fn instant(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(' ')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let sane = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sane || hour > 23 || minute > 59 || second > 59 || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let nanos = fraction.parse::<u64>().ok()? * 10u64.pow(9 - fraction.len() as u32);
    // Days since 1970 in the Gregorian calendar, counting years from March.
    let shifted = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + day_of_year - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}
