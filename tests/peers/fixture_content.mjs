// The prompts, resources and completions of the conformance fixture.

/** A red pixel, and a tenth of a millisecond of silence. */
export const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC';
export const WAV = Buffer.concat([
  Buffer.from('RIFF'), Buffer.from([37, 0, 0, 0]), Buffer.from('WAVEfmt '),
  Buffer.from([16, 0, 0, 0, 1, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x40, 0x1f, 0, 0, 1, 0, 8, 0]),
  Buffer.from('data'), Buffer.from([1, 0, 0, 0, 0x80]),
]).toString('base64');

export const text = (value) => ({ type: 'text', text: value });
const user = (content) => ({ role: 'user', content });

const WORDS = ['paris', 'park', 'party', 'test', 'testing', 'text'];

const prompts = {
  test_simple_prompt: {
    description: 'A prompt without arguments',
    get: () => [user(text('This is a simple prompt for testing.'))],
  },
  test_prompt_with_arguments: {
    description: 'A prompt that shows its two arguments',
    arguments: [
      { name: 'arg1', description: 'First test argument', required: true },
      { name: 'arg2', description: 'Second test argument', required: true },
    ],
    get: ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  },
  test_prompt_with_embedded_resource: {
    description: 'A prompt that embeds the resource it is given',
    arguments: [{ name: 'resourceUri', description: 'URI of the resource to embed', required: true }],
    get: ({ resourceUri }) => [
      user({
        type: 'resource',
        resource: { uri: resourceUri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' },
      }),
      user(text('Please process the embedded resource above.')),
    ],
  },
  test_prompt_with_image: {
    description: 'A prompt with an image',
    get: () => [user({ type: 'image', data: PNG, mimeType: 'image/png' }), user(text('Please analyze the image above.'))],
  },
  test_input_required_result_prompt: {
    description: 'A prompt that asks for its context first',
    get: async (_, { elicit }) => {
      const answer = await elicit({
        message: 'What context should the prompt use?',
        requestedSchema: { type: 'object', properties: { context: { type: 'string' } }, required: ['context'] },
      });
      return [user(text(`Context: ${answer.content?.context ?? answer.action}`))];
    },
  },
};

const dynamicPrompt = {
  description: 'Present while test_trigger_prompt_change has switched it on',
  get: () => [user(text('This prompt comes and goes.'))],
};

const visiblePrompts = (shown) => (shown.dynamicPrompt ? { ...prompts, test_dynamic_prompt: dynamicPrompt } : prompts);

export const listPrompts = (shown) =>
  Object.entries(visiblePrompts(shown)).map(([name, { get, ...rest }]) => ({ name, ...rest }));

export const findPrompt = (name, shown) =>
  Object.hasOwn(visiblePrompts(shown), name) ? visiblePrompts(shown)[name].get : undefined;

const contents = {
  'test://static-text': {
    name: 'Static text', description: 'A text that never changes',
    mimeType: 'text/plain', text: 'This is the content of the static text resource.',
  },
  'test://static-binary': {
    name: 'Static binary', description: 'An image that never changes',
    mimeType: 'image/png', blob: PNG,
  },
  'test://watched-resource': {
    name: 'Watched resource', description: 'A resource that can be subscribed to',
    mimeType: 'text/plain', text: 'Watch me.',
  },
};

export const resources = Object.entries(contents).map(([uri, { name, description, mimeType }]) => ({
  uri, name, description, mimeType,
}));

export const listTemplates = () => [
  {
    uriTemplate: 'test://template/{id}/data',
    name: 'Template', description: 'Data for any id', mimeType: 'application/json',
  },
];

/** The content of a resource without its uri; undefined if there is none. */
export function readResource(uri) {
  if (Object.hasOwn(contents, uri)) {
    const { name, description, ...content } = contents[uri];
    return content;
  }
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  if (id === undefined) return undefined;
  const data = { id, templateTest: true, data: `Data for ID: ${id}` };
  return { mimeType: 'application/json', text: JSON.stringify(data) };
}

export function completions({ argument }) {
  const values = WORDS.filter((word) => word.startsWith(argument.value));
  return { values, total: values.length, hasMore: false };
}
