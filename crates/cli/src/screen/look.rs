//! Styles of the terminal interface.

use ratatui::style::{Color, Modifier, Style};

/// Capabilities of the terminal.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub colour: bool,
    /// The terminal supports Unicode.
    pub unicode: bool,
}

impl Look {
    fn coloured(self, style: Style, colour: Color) -> Style {
        if self.colour { style.fg(colour) } else { style }
    }

    pub fn bad(self) -> Style {
        self.coloured(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    /// Style of routes and page titles.
    pub fn title(self) -> Style {
        self.coloured(Style::new().add_modifier(Modifier::BOLD), Color::Cyan)
    }
}

/// Style of column names and section headings.
pub fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
