// What the user and the model behind the TypeScript clients say.

const valueOf = ({ type }) => (type === 'boolean' ? true : 'Ada');

/** An answer to an elicitation: what the form requires is filled in. */
export const elicited = ({ requestedSchema: { properties, required = [] } }, declines) => {
  if (declines) return { action: 'decline' };
  return { action: 'accept', content: Object.fromEntries(required.map((name) => [name, valueOf(properties[name])])) };
};

export const sampled = () => ({
  role: 'assistant', model: 'peer', content: { type: 'text', text: 'said by the model' },
});
