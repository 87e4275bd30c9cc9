//! The parts of SVG that a chart needs: text, lines, bars, axes.
//!
//! Colours are classes; the style at the top of the file defines them for light and dark pages.

use std::fmt::Write;

/// Number of series with their own colours.
pub(super) const COLOURS: usize = 8;

const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 }
.head { font-weight: 600 }
.small { font-size: 11.5px; fill: #57606a }
.grid { stroke: #d8dee4 }
.axis { stroke: #57606a }
.floor { fill: none; stroke-width: 1.2; stroke-dasharray: 3 4; opacity: .8 }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round }
.c0 { stroke: #0969da; fill: #0969da } .c1 { stroke: #d1600d; fill: #d1600d }
.c2 { stroke: #1a7f37; fill: #1a7f37 } .c3 { stroke: #8250df; fill: #8250df }
.c4 { stroke: #bf3989; fill: #bf3989 } .c5 { stroke: #9a6700; fill: #9a6700 }
.c6 { stroke: #1b7c83; fill: #1b7c83 } .c7 { stroke: #6e7781; fill: #6e7781 }
polyline.line, polyline.floor { fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #30363d } .axis { stroke: #9198a1 }
.c0 { stroke: #58a6ff; fill: #58a6ff } .c1 { stroke: #f0883e; fill: #f0883e }
.c2 { stroke: #3fb950; fill: #3fb950 } .c3 { stroke: #bc8cff; fill: #bc8cff }
.c4 { stroke: #f778ba; fill: #f778ba } .c5 { stroke: #d29922; fill: #d29922 }
.c6 { stroke: #39c5cf; fill: #39c5cf } .c7 { stroke: #8b949e; fill: #8b949e }
}";

/// An SVG under construction.
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// The end of a text that is placed at its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        ));
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.push(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        ));
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(r#"<polyline points="{}" class="{class}"/>"#, points.join(" ")));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), class: &str) {
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.2" class="{class}"/>"#));
    }

    pub(super) fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" class="{class}"/>"#
        ));
    }

    /// The file.
    pub(super) fn finish(self) -> String {
        let Self { body, width, height } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\">\n<style>\n{STYLE}\n</style>\n{body}</svg>\n"
        )
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{element}").expect("a String takes all text");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Round numbers from 0 to at least `top`, about five.
pub(super) fn ticks(top: f64) -> Vec<f64> {
    let rough = (top / 5.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power);
    steps(step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power), top)
}

/// The same for counts in powers of two.
pub(super) fn binary_ticks(top: f64) -> Vec<f64> {
    let step = (top / 5.0).max(1.0).log2().ceil().exp2();
    steps(step, top)
}

fn steps(step: f64, top: f64) -> Vec<f64> {
    let last = (top / step * 0.999).ceil().max(1.0) as usize;
    (0..=last).map(|i| i as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_top() {
        assert_eq!(ticks(17.3), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.7).last(), Some(&0.8));
        assert_eq!(binary_ticks(8192.0), [0.0, 2048.0, 4096.0, 6144.0, 8192.0]);
        assert_eq!(binary_ticks(0.0), [0.0, 1.0]);
    }

    #[test]
    fn text_cannot_break_the_file() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((0.0, 0.0), Anchor::Start, "", "a < b & c");
        assert!(svg.finish().contains("a &lt; b &amp; c"));
    }
}
