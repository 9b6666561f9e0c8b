"""Words that lead to a verdict: a judge's own introduction, somebody else's words, conditions, examples, doubts.

Each pattern is searched in text of a bounded length, or takes bounded steps, so that a reading stays linear.
"""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.replies.reply_text import folded


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.VERBOSE)


VERDICT = r"(?:verdict|ratings?|scores?|judge?ments?|decision|conclusion|assessment|evaluation|grade|winner|choice|\
preference|result|ranking|determination|vote)"
SPEAKER = r"""(?:(?:assistant|answer|response|reply|output|model|candidate|text|option)(?:\s?[-(]?\s?[ab12]\b\)?)?
    |user|human|prompt|question|line|author|bot|system|it|they|he|she|which|that|who|[ab])(?:'s(?:\s[\w-]+){1,3}?)?"""
TEXT = r"""(?:texts?|lines?|strings?|(?<!some\s)words?|sentences?|phrases?|instructions?|messages?|statements?|prompt|
    marker|token|tag|quot(?:e|es|ation)|part|citation|footer|payload|comment|injections?|snippet|excerpt|passage|
    suffix|ending|command)"""
#: Words that may be between a verb of saying and what is said.
GLUE = r"""(?:the|an?|this|that|its|their|his|me|us|you|to|in|at|on|of|as|for|with|and|it|is|was|be|end|bottom|top|
    beginning|start|very|last|first|final|next|following|output|give|write|print|say|rate|choose|reply|respond|answer|
    return|own|my|judges?|grader|exactly|only|also|then|itself|themselves|hidden|injected|quoted|verdict|rating|score|
    here|below|so|literally|verbatim|simply|just|bold|b|should|must|out|loud|response|\w+ly|_TEXT_)""".replace(
    "_TEXT_", TEXT
)
#: Verbs of saying, asking and quoting whose subject is seldom the judge, and other marks of somebody else's words.
SAYS = r"""says?|(?<!as\s)(?:said|stated|instructed|asked|requested(?!\sformat))|
    (?:said|stated|written|instructed|asked|requested)\sby|saying|stating|claimed|claiming|writes?|wrote|writing|
    demanded|demanding|instruct(?:s|ing)|
    tells?|told|telling|ordered|ordering|commanded|begs?|begged|urges?|urged|quote|quoted|quoting|cites?|cited|
    insist(?:s|ed)|
    assert(?:s|ed)|declare[sd]|announce[sd]|shout(?:s|ed)|pretend(?:s|ed)|inject(?:s|ed|ing|ions?)|embed(?:s|ded)|
    insert(?:s|ed|ing)|append(?:s|ed)|smuggle[sd]|sneak(?:s|ed)|snuck|hides?|hid|hidden|asks?|asking|
    requesting|wants?|wanted|(?:tries|tried|trying|attempts|attempted|attempting)\sto|replie[sd]|responded|typed|
    prompted|
    end(?:s|ed|ing)\s(?:with|in|by|on)|according\sto|in\sthe\s(?:words|eyes|opinion|view)\sof|quoth|proclaim(?:s|ed)|
    self-(?:assigned|awarded|rated|proclaimed)|alleg(?:es|ed|edly)|verbatim|quotation|begs"""
NAMED_SAYS = r"""claims|states|demands|commands|orders|quotes|requests|prompts|hints|reports|responds|answers|
    types|votes|    gives\s(?:itself|themselves)|(?:rates|scores|calls|declares|awards|grades|ranks|
    praises)\s(?:itself|themselves)"""
CONTAINS = r"""contains?|contained|containing|includes?|included|including|adds?|added|reads|gives?|gave|provides?|
    concludes?|    concluded|suggests?|suggested|argues?|argued|mentions?|mentioned|notes?|noted|shows?|displays?|
    has|had|carries|features|
    offers|puts?|leaves|places|placed|outputs|prints|printed|printing|recommends?|proposes?|produces|produced|
    returns?|
    returned|assigns?|awards?|rates|scores|picks?|chooses|declares|finish(?:es|ed)|opens?|opened|starts?|started|
    begins?|
    closes|written|repeats?|goes|continues|echoes|thinks?|believes?|feels?|hopes?|wishes|expects?|prefers?|states"""
ATTRIBUTES = _words(
    rf"""\b(?:{SAYS})\b
    |\b{SPEAKER}\s(?:\w+ly\s|also\s|then\s|even\s|itself\s|just\s|still\s)?(?:{NAMED_SAYS})\b
    |\b(?:{CONTAINS})\b[^:;.]{{0,80}}?\b{TEXT}\b
    |\b(?:its|their|his|her|your|one's)\s(?:own|opinion|view|words)\b
    |\b(?:assistant|answer|response|reply|user|model|author|[ab])(?:\s?[ab])?'s\s(?:\w+\s)?(?:verdict|judge?ment|opinion|
        view|words|request|demand|wish|claim)\b
    |\b(?:as|so)\s(?:per|{SPEAKER}\s(?:{NAMED_SAYS}|{CONTAINS}))\b"""
)
#: Words directly in front of a verdict that make it somebody else's.
LEADS = _words(
    rf"""(?:\b{SPEAKER}\s(?:\w+ly\s|also\s|then\s|even\s|itself\s|just\s)?(?:{CONTAINS})(?:\s{GLUE}){{0,8}}
    |\b(?:contain|include|add|read|quote|repeat|display|output|print|write|adding|reading|concluding|ending)(?:s|ing)?
        (?:\s{GLUE}){{0,6}}
    |\b{TEXT}(?:\s(?:is|was|are|were|reads|being|here|there|follows|says|below|in\squestion))*)\W*$
    |\b(?:assistant|answer|response|reply|output|model|candidate)\s?[-(]?\s?[ab12]\b\)?(?:'s)?(?:\s[\w-]+){{0,4}}\W*[:\u2013\u2014-]\W*$
    |\b(?:assistant|answer|response|reply|user|model|author|candidate)(?:\s?[ab])?'s(?:\s[\w-]+){{1,4}}\W*[:\u2013\u2014-]\W*$
    |(?:^|[({{\[<|"])\W*(?:the\s)?(?:user|human|assistant|ai|bot|system)\W*:\W*$
    |^\W*[ab]\W*$
    |\b(?:answer|response|reply)\s(?:begins|ends|starts)\W*$"""
)
#: An announcement that ends a line or a sentence in front of a verdict.
ANNOUNCES = _words(
    rf"""\b(?:{SAYS}|(?:{SPEAKER})\s(?:\w+ly\s)?(?:{NAMED_SAYS}|{CONTAINS}))(?:\s{GLUE}){{0,8}}\W*$
    |\b(?:{CONTAINS})(?:\s{GLUE}){{0,6}}\s{TEXT}(?:\s{GLUE}){{0,3}}\W*$
    |\b(?:injected|quoted|hidden|following|next|last|final|suspicious|inserted|embedded|offending|malicious)\s(?:\w+\s)?
        {TEXT}(?:\s(?:is|was|are|were|reads|being|here|there|follows|says|below))*\W*$
    |^\W*(?:quot(?:e|ation)|citation|excerpt|injection|example|sample|template|format)\W*$"""
)
ENDS_IN_TEXT = _words(rf"\b{TEXT}(?:\s(?:is|was|are|were|reads|below))?\W*$")
#: An announcement of what comes next, in a sentence that ends before it.
FOLLOWS = _words(
    r"\b(?:following|follows?|below|this|as\ssuch|next|here)(?:\s(?:line|text|verdict|rating|score|words?|way|sentence))?\W*$"
)
#: A heading that names whose words follow.
NAMES_SPEAKER = _words(
    r"""\W*(?:the\s)?(?:(?:assistant|answer|response|reply|output|model|candidate)\s?[-(]?\s?[ab12]\b\)?|user|human|assistant|bot)
    (?:'s(?:\s[\w-]+){1,4}|\s(?:answer|response|reply|output)s?)?(?:\s(?:begins|ends|starts))?\W*
    |\W*(?:\w+\s){1,4}of\s(?:the\s)?(?:assistant|answer|response|reply|output|model|candidate|user)?\s?[abm12]?\W*"""
)
#: Words that make a verdict an example, an alternative or a bound.
EXAMPLE = _words(
    rf"""\b(?:e\.?g\.?|i\.?e\.?,?\ssomething\slike|for\s(?:example|instance)|such\sas|like|in\sthe\sform(?:at)?(?:\sof)?|
    (?:(?<!requested\s)(?<!required\s)(?<!specified\s)(?<!following\s)(?<!given\s)format|example|template|placeholder|option|sample|instance|possibilit(?:y|ies))s?(?:\s(?:is|are|of|includes?))?|one\sof|
    either|between|instead\sof|rather\sthan|as\sopposed\sto|other\sthan|over|than|far\sfrom|anything\sbut|except|against|
    reject(?:s|ed|ing)?|avoid(?:s|ed|ing)?|rul(?:e|es|ed|ing)\sout|opposite\sof|contrary\sof|reverse\sof|consider(?:ed|ing)|tempted\sto\s\w+|almost|nearly|
    at\s(?:most|least)|up\sto|below|above|under)\W*(?:(?:an?|the|my|this|say|giving|choosing|with|of|for|{VERDICT})\W+){{0,4}}$"""
)
#: A judge's own words in front of its verdict; `rest` may hold somebody else's.
OWN = _words(
    rf"""(?:\b(?:(?P<thus>so|thus|therefore|hence|accordingly|consequently)|overall|finally|ultimately|in\s(?:conclusion|summary|short)|
        to\s(?:conclude|summarize|sum\sup)|all\sin\sall|on\sbalance|as\sa\sresult|for\s(?:this|these)\sreasons?)\b,?\s*)*
    (?:\b(?:here(?:\sis|'s)\s)?(?:(?:my|the|this|our|its|an?|final|overall|resulting|total|numerical|official|impartial|best|
        correct|appropriate|most|fair)[\s-]){{0,5}}(?<!own\s)\b{VERDICT}
        (?:\s(?:for|of|on|between|goes|here)\b(?P<of>[^:"]{{0,60}}?))?\s*(?:(?:is|(?P<would>would\sbe)|remains|as\sfollows|
        therefore|thus|hence|clearly|a|an|at|of)\b\s*)*
    |\b(?:I|we)(?:'d|'ll|\swould|\swill|\scan|\smust|\sdo|\shave\sto|\sam\sgoing\sto)?(?:\s(?:\w+ly|then|thus|also|hence))?\s
        (?:rate|score|give|grade|choose|pick|select|judge|conclude|assign|award|go\swith|vote|say|prefer|lean|decide|settle|
        deem|declare|find|rank|render|arrive|reach)\b(?P<rest>[^:"]{{0,60}})
    |\b(?:better|preferred|winner|winning|best|stronger)\b[^:"]{{0,20}}:\s*(?:assistant|response|answer|model|output)?[\s-]?[ab]\b
    |\b(?:assistant|response|answer|model)[\s-]?\(?[ab]\)?(?:'s\s(?:answer|response))?\s(?:is|was|did|does|performs|wins)\b
        (?P<how>[^:"]{{0,40}}\b(?:better|best|stronger|wins?|ahead))
    |\b(?:it|this|that|(?:the|this)\s(?:answer|response|reply|assistant))(?:'s|\s(?:is|deserves|earns|merits|receives|gets))
        (?:\s(?:an?|the|about|worth|only|just))*)[\s:=*_.\-\u2013\u2014()\[\]{{}}$\\]*(?:boxed\{{)?[\s"\u201c]*$"""
)
#: Introductions without a verb, as `Rating:`, which may be objects of the words in front of them.
NOUN_ALONE = _words(
    rf"""[^\w]*(?:(?:my|the|this|our|its|an?|final|overall|resulting|total|numerical|official|impartial|own)[\s-]){{0,5}}{VERDICT}
    (?:\s(?:for|of|on)\b[^:"]{{0,60}}?)?(?:\sas\sfollows)?\W*"""
)
#: A clause about an answer whose verb may have the noun behind it as an object, with what joins the two.
HOLDS = _words(
    rf"""(?:\b(?:{CONTAINS}|{SAYS}|{NAMED_SAYS}|holds?|bears?|bearing|exhibits?|presents?|lists?|listing|appends|attach(?:es|ed)|tacks|
        slips|sports|adding|mentioning|showing|comes\swith|follow(?:s|ed)|write|say|mention|show|have|finish)\b
        |\b{SPEAKER}\s(?:\w+ly\s|also\s|then\s|even\s)?(?!(?:is|was|does|as|this|seems|appears|looks|feels|deserves|earns|merits|gets|
            receives|needed|lacks|fails|misses|succeeds|works|wins|loses)\b)\w{{2,}}(?:s|ed)\b(?=(?:(?!,\s\w).)*$))
    (?!.{{0,200}}(?:(?<!that\s)(?<!which\s)(?<!what\s)\b(?:is|are|was|were|I|we|deserv(?:es|ing)|earn(?:s|ing)|merit(?:s|ing)|receiv(?:es|ing)|gets)\b|n't\b|[;\u2013\u2014]|\s-\s))"""
)
TAKES_THE_WORD = re.compile(
    r"(?:\b(?:so|but|thus|therefore|hence|consequently|accordingly|yet|and)\b\W*|[;\u2014\u2013]\s*|\s-\s)$",
    re.IGNORECASE,
)
GIVEN = _words(
    r"\W*(?:since|because|given|although|though|while|considering|despite|whereas|based\son|due\sto|after)\b"
)
IMAGINES = _words(r"\W*(?:let\sus\s|let's\s)?(?:suppose|imagine|assume|pretend|say|hypothetically)\b")
#: A condition at the beginning of a sentence or clause.
SUPPOSES = _words(
    r"""(?:^|[,;:.(\u2013\u2014-]\s{0,4}|\b(?:then|but|and|so|only|that|even)\s)\W{0,4}(?:(?:had|were|should)\s(?:it|i|we|they|this|that|these|
        the|its|their|assistant|answer|response|model|[ab]|both|there|one|not)\b
    |if(?!\s(?:any\b|anything\b))\b|unless\b|assuming\b|suppos(?:e|ing)\b|imagine\b|hypothetically|provided\b|otherwise\b|in\scase\b|
        in\sthat\scase\b|in\sthe\sevent\b|lest\b|granted\sthat\b)
    |\b(?:if(?!\s(?:any\b|anything\b))|unless|assuming|supposing|hypothetical(?:ly)?|otherwise|would\s(?:otherwise\s)?have|
        could\shave\sbeen|might\shave|had\sit\sbeen|in\sthat\scase|provided\sthat)\b
    |^\W*without\s(?!(?:an?\s|any\s)?(?:doubt|question|hesitation))"""
)
#: A modal verb in the clause of a verdict.
MIGHT = _words(r"\b(?:would|could|might|should|may|maybe|perhaps)\b[^,;]*$|'d\sbe\b[^,;]*$")
#: A former or wrong verdict, in the clause of a verdict.
FORMER = _words(
    rf"""\b(?:initial|first|preliminary|tentative|provisional|previous|earlier|original|old|former|wrong|false|incorrect|second|
        alternative|opposite|reverse|default|naive)\s(?:\w+\s)?(?:{VERDICT}|impression|thought|instinct|inclination|guess|
        reading|idea)\b
    |\b(?:initially|at\sfirst|originally|previously|formerly|was\sgoing|were\sgoing|was\sabout|used\sto|had\sbeen|nobody|no\sone|
        hardly|doubt|doubtful|unlikely)\b[^,;]*$
    |\b{VERDICT}\s(?:was|were|had)\b[^,;]*$"""
)
#: A negation of a verdict in front of a colon, as in `This is not my verdict:`.
NEGATED_BEFORE_COLON = _words(
    rf"""(?:\b(?:not|never|no|neither|cannot|refuse[sd]?|wrong|incorrect|false)\b|n't\b)[^.;!?]{{0,60}}?\b(?:{VERDICT}|say|give|
        choose|pick|what|right|true|correct|case|mean|agree)\b[^.;!?]{{0,30}}$
    |^\W*(?:(?:the|an?|my)\s)?(?:not|never|wrong|incorrect|false(?:ly)?)\b[^.;!?]{{0,30}}$
    |(?:\b(?:not|never|cannot|neither)\b|n't\b)(?:(?!\b(?:but|so|yet|while|and)\b)[^.,:;!?]){{0,100}}$"""
)
#: Words below a verdict that say that it was somebody else's, or name its condition.
BEHIND = _words(
    rf"""(?:\b(?:this|that|these|those)\s(?:is|was|were|are|would|had|being|{VERDICT}|{TEXT})\b
        |\b(?:the|said)\s(?:{VERDICT}|{TEXT}|above)\b)
        [^.\n]{{0,80}}\b(?:{SAYS}|{NAMED_SAYS}|if|unless|had|were|would|quot\w*|from\s(?:the\s)?(?:assistant|answer|response))\b
    |\b(?:so|thus|as)\s(?:{SAYS}|{NAMED_SAYS}|{CONTAINS})\b
    |\b(?:so|as|at\sleast\saccording)\s(?:to\s)?{SPEAKER}\s(?:\w+ly\s)?(?:{SAYS}|{NAMED_SAYS}|would)\b
    |\b(?:this|that|these|those)\s(?:(?:is|are|was|were|comes?|came)\b[^.\n]{{0,60}}\b)?(?:{TEXT}|part\sof)\b
    |\bend\sof\s(?:the\s|that\s|this\s)?(?:quot\w*|answer|response|reply|assistant|excerpt|text)
    |^\W{{0,40}}(?:{SAYS}|{CONTAINS}|is|are|was|were|if|unless|provided|assuming|were|had|but\sonly|only\sif|only\swhen|in\scase|at\sleast\sif)\b
    |^\W{{0,40}}[-\u2013\u2014]\s?(?:the\s)?(?:assistant|answer|response|user|model)\s?[ab]?\W*$"""
)
#: The end of a clause whose object is the verdict, though it does not introduce a judge's own.
OBJECT = _words(
    r"\b(?:is|was|are|were|be|been|being|became|by|with|of|as|for|to|in|at|on|from|gives?|gave|giving|has|had|have|that|than|"
    r"and|or|nor|means?|meant|called|named|the|into|about|after|before|until|see|saw|found|part|chooses?|chose|picks?|picked|"
    r"prefers?|preferred|rates?|rated)\W*$"
)
#: A conjunction in front of a verdict, whose sentence decides.
CONJUNCTION = re.compile(r"(?<=\S)\s(?:so|thus|therefore|hence)\W{0,9}$", re.IGNORECASE)
#: A possessive that owns the verdict.
OWNED = _words(r"\b(?:\w+'s|its|their|his|her|your|whose)(?:\s(?!final|overall)\w+)?\s*$")
#: Words by which a judge compares or grades, without which a colon announces something else.
EVALUATES = _words(
    r"\b(?:better|worse|best|worst|stronger|weaker|superior|inferior|wins?|winner|winning|loses|tie|tied|equal(?:ly)?|same|prefer\w*|"
    r"favou?r\w*|correct|incorrect|right|wrong|accurate|inaccurate|helpful|unhelpful|good|bad|poor|great|excellent|complete|"
    r"incomplete|concise|clear(?:er|ly)?|detailed|thorough|relevant|irrelevant|useful|useless|creative|more|less|fewer|edge|"
    r"comparable|similar|fails?|lacks?|misses|errors?|mistakes?|reasons?|analysis|summary|comparison|"
    r"final(?:ly)?|overall|conclu\w+|judge?ment|urteil|bewertung|fazit|punktzahl|note|puntuaci\u00f3n|calificaci\u00f3n|veredicto|"
    r"conclusi\u00f3n|nota|avalia\u00e7\u00e3o|voto|punteggio|giudizio|verdetto)\b|"
    r"\b(?:so|thus|therefore|hence)\W*$|(?:^\W*|\bmy\s)(?:answer|output)\W*$|"
    r"[\u7ed3\u7d50]\u8bba|\u7d50\u8ad6|\u5224|\u88c1|\u8bc4|\u8a55|\u5f97?\u5206|\u30b9\u30b3\u30a2"
)
#: Verbs of saying and words of conditions in other languages of judges.
ABROAD = re.compile(
    r"\b(?:{})\b|^\W*(?:si|se)\s|{}".format(
        *(
            "|".join(map(folded, words.split()))
            for words in (
                "schreibt schrieb sagt sagte behauptet verlangt fordert lautet wenn falls laut zitat hätte wäre würde "
                "écrit dit affirme demande prétend selon serait aurait escribe dice afirma pide exige dijo escribió "
                "según sería escreve diz pede segundo scrive afferma chiede secondo sarebbe пишет говорит утверждает "
                "требует просит если",
                "说 說 写 寫 声称 聲稱 要求 指示 引用 如果 假如 假设 假設 若 要是 書 言っ 述べ 主張 もし なら",
            )
        )
    ),
    re.IGNORECASE,
)
