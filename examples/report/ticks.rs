//! Round numbers: where an axis is marked, how wide a step of time is, and how both are written.

/// Steps of 1, 2 or 5 times a power of ten, at most `most` of them up to `top`, from zero.
pub fn round(top: f64, most: usize) -> Vec<f64> {
    let rough = top.max(f64::MIN_POSITIVE) / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| top / step <= most as f64)
        .unwrap_or(10.0 * power);
    (0..=(top / step).floor() as usize).map(|n| n as f64 * step).collect()
}

/// Lengths of time in which people count, in seconds.
const LENGTHS: [f64; 21] = [
    0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0,
    7_200.0, 14_400.0, 21_600.0, 86_400.0,
];

/// The shortest length of which at most `most` make up `span` seconds.
pub fn length(span: f64, most: usize) -> f64 {
    let fits = |length: &&f64| span / **length <= most as f64;
    let days = (span / 86_400.0 / most as f64).ceil();
    LENGTHS.iter().find(fits).copied().unwrap_or(days * 86_400.0)
}

/// A number as people read it: thousands apart, and no more digits than say something.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        abs if abs == 0.0 || abs >= 100.0 || value.fract() == 0.0 => 0,
        abs if abs >= 1.0 => 1,
        abs if abs >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

/// An instant on an axis: `45 s`, `12 min`, `1:30 h`.
pub fn instant(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let (minutes, rest) = (whole / 60, whole % 60);
    match rest {
        _ if seconds < 120.0 => format!("{} s", number(seconds)),
        0 if minutes < 120 => format!("{minutes} min"),
        _ if minutes < 120 => format!("{minutes}:{rest:02} min"),
        0 => format!("{}:{:02} h", minutes / 60, minutes % 60),
        _ => format!("{}:{:02}:{rest:02} h", minutes / 60, minutes % 60),
    }
}
