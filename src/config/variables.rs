//! Replaces variables of the environment in values.

const SET_IT: &str = "set it, or write it into a file that `env_files` names";

pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VariableMistake {
    Form(String),
    Unset(String),
}

/// Replaces each `${VAR}` by its value in the environment; `$${` is an escaped `${`. No error shows a variable's value.
pub(super) fn fill_in(written: &str, env: Environment<'_>) -> Result<String, Vec<VariableMistake>> {
    let mut text = String::with_capacity(written.len());
    let mut wrong = Vec::new();
    let mut rest = written;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        let after = &after[2..];
        if let Some(before) = before.strip_suffix('$') {
            text.push_str(before);
            text.push_str("${");
            rest = after;
            continue;
        }
        text.push_str(before);
        let Some((name, tail)) = after.split_once('}') else {
            wrong.push(VariableMistake::Form(
                "has a ${ without its }; write $${ for the characters themselves".to_owned(),
            ));
            return Err(wrong);
        };
        rest = tail;
        if !is_variable_name(name) {
            wrong.push(VariableMistake::Form(format!(
                "${{{}}} is not a variable's name; write $${{ for the characters themselves",
                name.escape_debug()
            )));
        } else if let Some(value) = env(name) {
            text.push_str(&value);
        } else {
            wrong.push(VariableMistake::Unset(format!("the environment has no variable {name}; {SET_IT}")));
        }
    }
    text.push_str(rest);
    if wrong.is_empty() { Ok(text) } else { Err(wrong) }
}

pub fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in_and_every_missing_one_is_named() {
        let env = |name: &str| match name {
            "HOST" => Some("mcp.example".to_owned()),
            "EMPTY" => Some(String::new()),
            "ODD" => Some("${HOST}".to_owned()),
            _ => None,
        };
        let form = |text: String| VariableMistake::Form(text);
        let unset = |name| VariableMistake::Unset(format!("the environment has no variable {name}; {SET_IT}"));
        let badly_named =
            |name| form(format!("${{{name}}} is not a variable's name; write $${{ for the characters themselves"));
        for (written, filled) in [
            ("plain $5 and }", Ok("plain $5 and }")),
            ("http://${HOST}/", Ok("http://mcp.example/")),
            ("${HOST}${EMPTY}${HOST}", Ok("mcp.examplemcp.example")),
            ("${ODD}", Ok("${HOST}")),
            ("$${HOST}", Ok("${HOST}")),
            ("$$${HOST}", Ok("$${HOST}")),
            ("${A}${B}", Err(vec![unset("A"), unset("B")])),
            ("${}", Err(vec![badly_named("")])),
            ("${1A}", Err(vec![badly_named("1A")])),
            ("${A-B}", Err(vec![badly_named("A-B")])),
            ("${HOST", Err(vec![form("has a ${ without its }; write $${ for the characters themselves".into())])),
        ] {
            assert_eq!(fill_in(written, &env), filled.map(str::to_owned), "{written:?}");
        }
    }
}
