//! Asks the user a server's question: reads `elicitation/create`, prompts line by line, answers.

pub(super) mod form;

use serde_json::{Value, json};

use super::ui::Ui;
use crate::wire::Object;
use form::ElicitationForm;

/// The client capability for answering forms and URLs.
pub(super) fn capability() -> Value {
    json!({ "form": {}, "url": {} })
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum UserQuestion {
    Form(ElicitationForm),
    Link { message: String, url: url::Url },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum UserAnswer {
    /// With the form's content; `None` for a URL.
    Accept(Option<Value>),
    Decline,
    Cancel,
}

impl UserAnswer {
    pub(super) fn to_result(&self) -> Value {
        match self {
            Self::Accept(Some(content)) => json!({ "action": "accept", "content": content }),
            Self::Accept(None) => json!({ "action": "accept" }),
            Self::Decline => json!({ "action": "decline" }),
            Self::Cancel => json!({ "action": "cancel" }),
        }
    }
}

impl UserQuestion {
    /// Reads the parameters of `elicitation/create`.
    pub(super) fn read(params: &Object) -> Result<Self, String> {
        match params.get_string("mode").as_deref() {
            None | Some("form") => ElicitationForm::read(params).map(Self::Form).map_err(|error| error.to_string()),
            Some("url") => {
                let message = params.get_string("message").ok_or("the question has no message")?;
                let url = params.get_string("url").ok_or("the question has no address")?;
                let url = url::Url::parse(&url).map_err(|error| format!("its address is invalid: {error}"))?;
                // Other schemes start programs on this machine.
                if !matches!(url.scheme(), "http" | "https") {
                    return Err(format!("its address is of the scheme {}", url.scheme()));
                }
                Ok(Self::Link { message, url })
            }
            Some(other) => Err(format!("the mode {other} is unknown")),
        }
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Form(form) => &form.message,
            Self::Link { message, .. } => message,
        }
    }

    /// Asks the user. The end of the input declines. Dropping the future withdraws the question.
    pub(super) async fn put(&self, ui: &mut dyn Ui) -> UserAnswer {
        let mut lines = self.message().lines();
        ui.note(&format!("the tool asks: {}", lines.next().unwrap_or_default()));
        lines.for_each(|line| ui.note(&format!("  {line}")));
        match self {
            Self::Form(form) => fill_in(form, ui).await,
            Self::Link { url, .. } => {
                ui.note(&format!("  address: {url}"));
                ui.note(&format!("  leads to: {}", url.host_str().unwrap_or_default()));
                ui.note("  It is not opened for you. Open it only if you trust it.");
                refusal(ui, "Done there? (accept/decline/cancel): ", None).await.unwrap_or(UserAnswer::Accept(None))
            }
        }
    }
}

async fn fill_in(form: &ElicitationForm, ui: &mut dyn Ui) -> UserAnswer {
    let mut values = Vec::with_capacity(form.fields.len());
    for field in &form.fields {
        if let Some(description) = &field.description {
            description.lines().for_each(|line| ui.note(&format!("  {line}")));
        }
        for (at, choice) in field.choices().iter().enumerate() {
            let title = choice.title.as_ref().map(|title| format!(" ({title})")).unwrap_or_default();
            ui.note(&format!("  {}. {}{title}", at + 1, choice.value));
        }
        let value = loop {
            let Some(line) = ui.line(&format!("  {}", field.prompt())).await else { return UserAnswer::Decline };
            match field.value(&line) {
                Ok(value) => break value,
                Err(why) => ui.note(&format!("  {why}")),
            }
        };
        values.push(value);
    }
    let (prompt, default) = match form.fields.is_empty() {
        true => ("Your answer (accept/decline/cancel): ", None),
        false => ("Send this? (accept/decline/cancel) [accept]: ", Some("accept")),
    };
    refusal(ui, prompt, default).await.unwrap_or_else(|| UserAnswer::Accept(Some(form.content(values))))
}

/// Asks the user for a decision. `None` means acceptance; the caller has the content.
async fn refusal(ui: &mut dyn Ui, prompt: &str, default: Option<&str>) -> Option<UserAnswer> {
    loop {
        let Some(line) = ui.line(&format!("  {prompt}")).await else { return Some(UserAnswer::Decline) };
        let word = line.trim().to_lowercase();
        let word = if word.is_empty() { default.unwrap_or_default() } else { &word };
        match word {
            "a" | "accept" | "y" | "yes" => return None,
            "d" | "decline" | "n" | "no" => return Some(UserAnswer::Decline),
            "c" | "cancel" => return Some(UserAnswer::Cancel),
            _ => ui.note("  answer accept, decline or cancel"),
        }
    }
}
